"""How matrices are rounded: ours, and the simpler ways that it is measured against."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engines.build.feedback import TURNS, Rounded, rounded
from engines.build.grid import fit_scales, nearest, spread
from engines.build.moments import DAMPING, Moments
from engines.build.smoothing import input_scales


@dataclass(frozen=True, slots=True)
class Recipe:
    """Which parts of the way are gone."""

    smoothing: bool = True  # AWQ's scales
    feedback: bool = True  # an input's error is made good by others
    # Of what the matrices before have lost, too. Off: on text unlike the calibration's it lost more
    # than it brought (benchmarks/LOG.md).
    correcting: bool = False
    damping: float = DAMPING
    turns: int = TURNS

    def input_scales(self, weights: Tensor, moments: Moments, group: int) -> Tensor:
        """What inputs are divided by, and weights multiplied with."""
        if not self.smoothing:
            return torch.ones(weights.shape[1])
        return input_scales(weights, moments.hessian(self.damping), moments.sizes, group)

    def rounded(self, weights: Tensor, moments: Moments, scales: Tensor, group: int) -> Rounded:
        """The weights on the grid, for inputs divided by `scales`."""
        hessian = moments.hessian(self.damping) / torch.outer(scales, scales)
        if self.correcting:
            weights = moments.target(weights, self.damping)
        scaled = weights * scales
        if self.feedback:
            return rounded(scaled, hessian, group, self.turns)
        steps = fit_scales(scaled, hessian.diagonal(), group)
        return Rounded(nearest(scaled, spread(steps, group)), steps, group)


OURS = Recipe()
AWQ = Recipe(feedback=False)
RTN = Recipe(smoothing=False, feedback=False)
