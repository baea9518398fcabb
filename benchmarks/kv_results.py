"""Figures of several kinds of pages over the same texts: means, and paired differences. No I/O."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

RESAMPLES = 4000


@dataclass(frozen=True, slots=True)
class Difference:
    """How much more than the base's, with the bounds of its 95 % interval; NaN of a single text."""

    mean: float
    low: float
    high: float


@dataclass(slots=True)
class Results:
    """By metric and kind, a number for each text: the same texts in the same order."""

    base: str  # the kind that others are compared with
    values: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def add(self, metric: str, kind: str, value: float) -> None:
        """The figure of the next text."""
        self.values[metric][kind].append(float(value))

    def number(self, metric: str) -> int:
        """How many texts there were."""
        return len(self.values[metric][self.base])

    def mean(self, metric: str, kind: str) -> float:
        """Over all texts."""
        return float(np.mean(self.values[metric][kind]))

    def difference(self, metric: str, kind: str) -> Difference:
        """From the base, by bootstrap over the texts' own differences.

        Raises ValueError for kinds that didn't read the same number of texts.
        """
        of_kind, of_base = (np.array(self.values[metric][one]) for one in (kind, self.base))
        if of_kind.shape != of_base.shape:
            raise ValueError(f"{kind} read {len(of_kind)} texts, {self.base} {len(of_base)}")
        each = of_kind - of_base
        if len(each) < 2:
            return Difference(float(each.mean()), float("nan"), float("nan"))
        chosen = np.random.default_rng(0).integers(0, len(each), (RESAMPLES, len(each)))
        low, high = np.quantile(each[chosen].mean(axis=1), (0.025, 0.975))
        return Difference(float(each.mean()), float(low), float(high))
