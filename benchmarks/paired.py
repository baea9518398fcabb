"""Whether two arms of paired timings differ, and whether they are shown to be alike. No I/O.

Timings drift and come in bursts, so nothing here takes them for independent: the tests are over the
differences within pairs, and intervals come from resampling blocks of consecutive pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
Statistic = Callable[[Floats, Floats], Floats]  # of the two arms, along their last axis

RESAMPLES = 2000
AT_ONCE = 50  # resamples, to bound the memory
PROBES = 10  # that an attacker averages
NONE = float("nan")


@dataclass(frozen=True, slots=True)
class Pairs:
    """Two arms in milliseconds, `candidate[i]` taken beside `control[i]`, in order of time."""

    candidate: Floats
    control: Floats

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]]) -> Pairs:
        """From (candidate, control) of each pair."""
        both = np.array(pairs, dtype=np.float64).reshape(-1, 2)
        return cls(both[:, 0], both[:, 1])

    def __len__(self) -> int:
        return len(self.candidate)

    @property
    def differences(self) -> Floats:
        """Below 0 where the candidate was faster."""
        return self.candidate - self.control


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the bounds of its confidence interval."""

    estimate: float
    low: float
    high: float

    @property
    def reach(self) -> float:
        """The smallest d for which the interval lies within +-d."""
        return max(abs(self.low), abs(self.high))

    @property
    def half_width(self) -> float:
        """Half of what lies between the bounds."""
        return (self.high - self.low) / 2


def wilcoxon_p(pairs: Pairs) -> float:
    """That the differences lie around 0, by their signed ranks."""
    return float(stats.wilcoxon(pairs.differences).pvalue)


def sign_p(pairs: Pairs) -> float:
    """That a difference is as likely above 0 as below."""
    slower = int(np.count_nonzero(pairs.differences > 0))
    unequal = int(np.count_nonzero(pairs.differences))
    return float(stats.binomtest(slower, unequal).pvalue) if unequal else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for being so many, in their order."""
    number, smallest = len(p_values), 0.0
    adjusted = [0.0] * number
    for rank, index in enumerate(np.argsort(p_values)):
        smallest = max(smallest, min(1.0, (number - rank) * p_values[index]))
        adjusted[index] = smallest
    return adjusted


def uniform_p(ranks: Sequence[int], places: int) -> float:
    """That each of the places 0 to `places` - 1 is as likely as another, by chi-square."""
    return float(stats.chisquare(np.bincount(ranks, minlength=places)).pvalue)


def median_difference(candidate: Floats, control: Floats) -> Floats:
    """The median of the differences within pairs."""
    return np.asarray(np.median(candidate - control, axis=-1))


def low_difference(candidate: Floats, control: Floats) -> Floats:
    """The difference of the arms' own 10th percentiles, where noise is least.

    Not the 10th percentile of the differences: that is far from 0 though nothing differs.
    """
    low = np.quantile(candidate, 0.1, axis=-1) - np.quantile(control, 0.1, axis=-1)
    return np.asarray(low)


def ratio_of_medians(candidate: Floats, control: Floats) -> Floats:
    """The candidates' median over the controls'."""
    return np.asarray(np.median(candidate, axis=-1) / np.median(control, axis=-1))


def interval(
    pairs: Pairs, statistic: Statistic, chance: np.random.Generator, level: float = 0.90
) -> Interval:
    """The statistic, with its interval by block bootstrap over pairs.

    At level 0.90, lying within +-d is a test of equivalence (TOST) at 5 %.
    """
    if not len(pairs):
        return Interval(NONE, NONE, NONE)
    estimates = np.concatenate(
        [
            statistic(pairs.candidate[picked], pairs.control[picked])
            for picked in _resamples(len(pairs), chance)
        ]
    )
    low, high = np.quantile(estimates, ((1 - level) / 2, (1 + level) / 2))
    return Interval(float(statistic(pairs.candidate, pairs.control)), float(low), float(high))


def attacker_auc(cells: Sequence[Pairs], chance: np.random.Generator) -> Interval:
    """How well an average of so many probes tells a hit from a miss, in the mean of all cells.

    The chance that the hit's is the smaller one: 0.5 tells nothing, 1 tells all. `high` is the
    upper 95 % bound. NaN if a cell has fewer than two averages an arm.
    """
    wins = [_wins(pairs) for pairs in cells]
    if min(map(len, wins), default=0) < 2:
        return Interval(NONE, NONE, NONE)
    areas = np.mean([_resampled_areas(one, chance) for one in wins], axis=0)
    low, high = np.quantile(areas, (0.05, 0.95))
    return Interval(float(np.mean([one.mean() for one in wins])), float(low), float(high))


def _wins(pairs: Pairs) -> Floats:
    """For each hit's average (row) and each miss's (column): 1 if the hit's is smaller, else 0."""
    groups = len(pairs) // PROBES
    hits, misses = (
        arm[: groups * PROBES].reshape(groups, PROBES).mean(axis=1)
        for arm in (pairs.candidate, pairs.control)
    )
    return np.asarray(np.sign(misses[None, :] - hits[:, None]) / 2 + 0.5)


def _resampled_areas(wins: Floats, chance: np.random.Generator) -> list[float]:
    number = len(wins)
    drawn = (chance.integers(0, number, number) for _ in range(RESAMPLES))
    return [float(wins[np.ix_(picked, picked)].mean()) for picked in drawn]


def pairs_needed(number: int, reach: float, wanted: float) -> int:
    """About how many it takes, if the interval of so many reaches so far, to reach as wanted."""
    return ceil(number * (reach / wanted) ** 2)


def _resamples(number: int, chance: np.random.Generator) -> Iterator[NDArray[Any]]:
    """Rows of indices, some rows at a time: blocks that begin anywhere and go on round the end."""
    length = max(1, round(number ** (1 / 3)))
    blocks = -(-number // length)
    for _ in range(RESAMPLES // AT_ONCE):
        starts = chance.integers(0, number, (AT_ONCE, blocks, 1))
        rows = (starts + np.arange(length)) % number
        yield rows.reshape(AT_ONCE, -1)[:, :number]
