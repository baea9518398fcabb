"""Rounding with error feedback: what one input's rounding loses, the inputs after it make good.

The objective is the error of the layer's outputs over the calibration text: of E = W - W', the sum
of E H E^T over rows, H = X^T X. GPTQ goes over the inputs once (the most active first, group scales
fixed before); then scales are fitted anew to the integers, and integers to the rest, in turns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engines.build.grid import HIGHEST, LOWEST, fit_scales, nearest, spread, to_bf16

BLOCK = 64  # inputs whose errors are spread at once
TURNS = 3  # of refining


@dataclass(frozen=True, slots=True)
class Rounded:
    """integers [n, k] as floats, scales [n, k / group]; a weight is their product."""

    integers: Tensor
    scales: Tensor
    group: int

    @property
    def values(self) -> Tensor:
        """[n, k]."""
        return self.integers * spread(self.scales, self.group)


def rounded(weights: Tensor, hessian: Tensor, group: int, turns: int = TURNS) -> Rounded:
    """The weights [n, k] on the grid, for inputs of which `hessian` [k, k] is X^T X, damped."""
    found = _gptq(weights, hessian, group)
    for _ in range(turns):
        found = _refit(weights, hessian, found)
        found = _descend(weights, hessian, found)
    return found


def _gptq(weights: Tensor, hessian: Tensor, group: int) -> Rounded:
    scales = fit_scales(weights, hessian.diagonal(), group)
    order = hessian.diagonal().argsort(descending=True, stable=True)
    left = weights[:, order].T.contiguous()  # [k, n]: an input's weights lie together
    steps = spread(scales, group)[:, order].T.contiguous()
    factor = _inverse_factor(hessian[order][:, order])
    integers = torch.empty_like(left)
    for start in range(0, len(left), BLOCK):
        end = min(start + BLOCK, len(left))
        errors = torch.empty_like(left[start:end])
        for i in range(start, end):
            integers[i] = nearest(left[i], steps[i])
            error = (left[i] - integers[i] * steps[i]) / factor[i, i]
            left[i + 1 : end].addr_(factor[i, i + 1 : end], error, alpha=-1)
            errors[i - start] = error
        left[end:].addmm_(factor[start:end, end:].T, errors, alpha=-1)
    back = order.argsort()
    return Rounded(integers[back].T.contiguous(), scales, group)


def _inverse_factor(hessian: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse, in double precision on the way."""
    lower = torch.linalg.cholesky(hessian.double())
    inverse = torch.cholesky_inverse(lower)
    upper: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return upper.float()


def _refit(weights: Tensor, hessian: Tensor, found: Rounded) -> Rounded:
    """The scales that serve these integers best: for each row a small linear system."""
    n, k = weights.shape
    groups = k // found.group
    integers = found.integers.reshape(n, groups, found.group)
    matrix = torch.empty(n, groups, groups)
    for i in range(groups):
        rows = hessian[i * found.group : (i + 1) * found.group]
        reach = (integers[:, i] @ rows).reshape(n, groups, found.group)
        matrix[:, i] = (reach * integers).sum(-1)
    target = ((weights @ hessian).reshape(n, groups, found.group) * integers).sum(-1)
    # A group of zeros has no say in its scale: the small term keeps the one it has.
    ridge = 1e-6 * matrix.diagonal(dim1=1, dim2=2).mean(1, keepdim=True) + 1e-30
    matrix.diagonal(dim1=1, dim2=2).add_(ridge)
    scales = torch.linalg.solve(matrix, target + ridge * found.scales)
    scales = to_bf16(scales)
    fitted = Rounded(found.integers, torch.where(scales == 0, found.scales, scales), found.group)
    is_better = _loss(weights, hessian, fitted) < _loss(weights, hessian, found)
    return Rounded(
        found.integers, torch.where(is_better[:, None], fitted.scales, found.scales), found.group
    )


def _loss(weights: Tensor, hessian: Tensor, found: Rounded) -> Tensor:
    """The error of each row's outputs."""
    error = weights - found.values
    return ((error @ hessian) * error).sum(1)


def _descend(weights: Tensor, hessian: Tensor, found: Rounded) -> Rounded:
    """Each integer in turn is set to what is best beside all the others."""
    steps = spread(found.scales, found.group).T.contiguous()  # [k, n]
    integers = found.integers.T.contiguous()
    slope = hessian @ (weights.T - integers * steps)  # [k, n]: which way each weight should go
    for start in range(0, len(integers), BLOCK):
        block = slice(start, start + BLOCK)
        local = slope[block]
        moved = torch.zeros_like(local)
        for i in range(len(local)):
            at = start + i
            wanted = integers[at] + local[i] / (hessian[at, at] * steps[at])
            chosen = wanted.round_().clamp_(LOWEST, HIGHEST)
            moved[i] = (chosen - integers[at]) * steps[at]
            integers[at] = chosen
            local.addr_(hessian[at, block], moved[i], alpha=-1)
        outside = hessian[:, block] @ moved
        outside[block] = 0
        slope -= outside
    return Rounded(integers.T.contiguous(), found.scales, found.group)
