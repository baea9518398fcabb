"""The grid of INT4: a scale for each row and group of inputs, integers from -8 to 7.

A scale may be negative: then the group's reach is -7..8 of its size, and whichever end the largest
weight is at, all sixteen integers are used. Scales are bf16 numbers, because engines hold them so.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LOWEST, HIGHEST = -8, 7
# How far a group reaches, as shares of its largest weight: clipping that one may serve the others.
REACHES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.64)


def to_bf16(x: Tensor) -> Tensor:
    """Rounded to what bf16 holds, still float32."""
    return x.to(torch.bfloat16).float()


def nearest(weights: Tensor, scales: Tensor) -> Tensor:
    """The integers, as floats, that lie nearest to weights / scales."""
    return (weights / scales).round_().clamp_(LOWEST, HIGHEST)


def fit_scales(
    weights: Tensor, importance: Tensor, group: int, reaches: Sequence[float] = REACHES
) -> Tensor:
    """For weights [n, k] and the importance [k] of inputs: the best scales found [n, k / group]."""
    grouped = weights.reshape(len(weights), -1, group)
    importance = importance.reshape(-1, group)
    extreme = _extreme(grouped)
    best = torch.full_like(extreme, torch.inf)
    scales = torch.ones_like(extreme)
    for reach in reaches:
        tried = _usable(to_bf16(extreme * (reach / LOWEST)))
        steps = tried[..., None]
        left = nearest(grouped, steps).mul_(steps).sub_(grouped)
        error = (left.square_() * importance).sum(-1)
        is_better = error < best
        scales = torch.where(is_better, tried, scales)
        best = torch.minimum(error, best)
    return scales


def round_to_nearest(weights: Tensor, group: int) -> Tensor:
    """The weights as the grid holds them, without clipping or feedback: [n, k] of values."""
    grouped = weights.reshape(len(weights), -1, group)
    steps = _usable(to_bf16(_extreme(grouped) / LOWEST))[..., None]
    return nearest(grouped, steps).mul_(steps).flatten(1)


def spread(scales: Tensor, group: int) -> Tensor:
    """[n, k / group] -> [n, k]."""
    return scales.repeat_interleave(group, dim=1)


def _extreme(grouped: Tensor) -> Tensor:
    """Of each group the weight that is largest in size, with its sign."""
    place = grouped.abs().argmax(-1, keepdim=True)
    return grouped.gather(-1, place).squeeze(-1)


def _usable(scales: Tensor) -> Tensor:
    """A group of zeros needs a scale that can be divided by."""
    return torch.where(scales == 0, torch.ones_like(scales), scales)
