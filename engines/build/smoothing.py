"""AWQ's scales: inputs that are large on average are made small, and their weights large.

Told weights and the inputs' moments; the scales are folded into what comes before, or applied to
the inputs. Chosen by trying: the error of rounded outputs for each exponent of a grid.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engines.build.grid import round_to_nearest

EXPONENTS = tuple(i / 10 for i in range(11))
ROWS = 512
LEAST, MOST = 1e-4, 1e4  # of a scale, after dividing by the middle of all


def input_scales(weights: Tensor, hessian: Tensor, sizes: Tensor, group: int) -> Tensor:
    """Scales [k] to divide inputs by, given their mean sizes [k]."""
    weights = weights[:: max(1, len(weights) // ROWS)]  # a sample of the outputs will do
    best, chosen = torch.inf, torch.ones_like(sizes)
    for exponent in EXPONENTS:
        tried = _normal(sizes.clamp(min=1e-8) ** exponent)
        scaled = weights * tried
        error = (scaled - round_to_nearest(scaled, group)) / tried
        loss = float(((error @ hessian) * error).sum())
        if loss < best:
            best, chosen = loss, tried
    return chosen


def _normal(scales: Tensor) -> Tensor:
    return (scales / (scales.max() * scales.min()).sqrt()).clamp(LEAST, MOST)
