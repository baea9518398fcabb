"""What a switch costs, from blocks of three steps: one with it on, and two with it off. No I/O.

Steps of a block do the same work, in an order that is drawn, so a block compares like with like: a
machine that drifts, and steps of all lengths, cancel out. The estimate is the mean of log ratios
without the lowest and the highest tenth, since a step that an interrupt fell into says nothing; its
95 % interval is by bootstrap over blocks. The step with it on is compared with each of the others,
not with their mean, in which an interrupt is twice as likely and half as long: what is cut off at
both ends would not be alike then, and the estimate too low. The sums, from which nothing is cut
off, are told beside it. The two steps with it off, compared in the same way, show the noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from benchmarks.paired import Floats, Interval, Pairs, interval

TRIMMED = 0.1  # of the blocks, at each end
LEVEL = 0.95
FEWEST = 12  # blocks: an interval of fewer is narrow by luck


class Block(NamedTuple):
    """What three steps of the same work took, in any one unit."""

    on: float
    off: float
    off_again: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Percent of a step with it off. NaN of no blocks."""

    blocks: int
    cost: Interval
    noise: Interval  # of one step with it off over the other: 0 lies within as often as 95 %
    by_sums: float

    @property
    def half_width(self) -> float:
        """How far the cost may be off, in percent points."""
        return self.cost.half_width

    def is_known_within(self, half_width: float) -> bool:
        """Whether the interval is as narrow as that, and of blocks enough to be believed."""
        return self.blocks >= FEWEST and self.half_width <= half_width


def cost(blocks: Sequence[Block], chance: np.random.Generator) -> Cost:
    """What being on costs, over these blocks in order of time."""
    times = np.array(blocks, np.float64).reshape(-1, 3)
    on, off = times[:, :1], times[:, 1:]
    return Cost(
        blocks=len(blocks),
        cost=difference(Pairs(on, off), chance),
        noise=difference(Pairs(off[:, :1], off[:, 1:]), chance),
        by_sums=float(on.sum() / off.sum() * 200 - 100) if blocks else np.nan,
    )


def difference(pairs: Pairs, chance: np.random.Generator) -> Interval:
    """The candidates over the controls, [blocks, 1] and [blocks, some], in percent more."""
    return interval(pairs, trimmed_difference, chance, LEVEL)


def trimmed_difference(candidate: Floats, control: Floats) -> Floats:
    """In percent, along the last two axes: the trimmed mean of log ratios, as a ratio less 1."""
    ratios = np.log(candidate / control)
    ratios = np.sort(ratios.reshape(*ratios.shape[:-2], -1), axis=-1)
    number = ratios.shape[-1]
    cut = int(number * TRIMMED)
    return np.asarray(np.expm1(ratios[..., cut : number - cut].mean(axis=-1)) * 100)


def ratio(candidate: Floats, control: Floats) -> Floats:
    """The same of two arms, along the last axis, as a ratio."""
    return 1 + trimmed_difference(candidate[..., None], control[..., None]) / 100
