"""What calibration learns of a matrix' inputs: sums over all tokens of the text.

Of `exact` inputs X (the model as it was) and `actual` ones X' (those that the matrices before,
rounded already, lead to): X'^T X', (X - X')^T X', and the mean size of each input.
"""

from __future__ import annotations

import torch
from torch import Tensor

DAMPING = 0.01  # of the mean of the diagonal: what is seldom seen in the text still counts


class Moments:
    """Sums over the tokens of many chunks."""

    def __init__(self, num_inputs: int) -> None:
        self._actual = torch.zeros(num_inputs, num_inputs)
        self._lost = torch.zeros(num_inputs, num_inputs)
        self._sizes = torch.zeros(num_inputs)
        self._tokens = 0

    def add(self, exact: Tensor, actual: Tensor) -> None:
        """Inputs [..., k] of the same tokens."""
        exact, actual = exact.flatten(0, -2).float(), actual.flatten(0, -2).float()
        self._actual.addmm_(actual.T, actual)
        # A small part of the sum that `target` needs: bf16's digits are enough, at twice the speed.
        self._lost += (exact - actual).bfloat16().T @ actual.bfloat16()
        self._sizes += actual.abs().sum(0)
        self._tokens += len(actual)

    @property
    def sizes(self) -> Tensor:
        """The mean size of each input."""
        return self._sizes / self._tokens

    def hessian(self, damping: float = DAMPING) -> Tensor:
        """X'^T X' a token, damped."""
        found = self._actual / self._tokens
        found.diagonal().add_(damping * float(found.diagonal().mean()) + 1e-12)
        return found

    def target(self, weights: Tensor, damping: float = DAMPING) -> Tensor:
        """The weights that would come nearest to the exact outputs from the actual inputs."""
        hessian = self.hessian(damping).double()
        lost = (weights @ (self._lost / self._tokens)).double()
        change: Tensor = torch.linalg.solve(hessian, lost.T)
        return weights + change.T.float()
