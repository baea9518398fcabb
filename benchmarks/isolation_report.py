"""What the trials of bench_isolation show: the figures of each cell, the table, the targets."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.leaky_engine import FACTORIES
from benchmarks.paired import (
    PROBES,
    Interval,
    Pairs,
    attacker_auc,
    holm,
    interval,
    low_difference,
    median_difference,
    pairs_needed,
    ratio_of_medians,
    sign_p,
    uniform_p,
    wilcoxon_p,
)
from benchmarks.report import at_least, at_most, emit, foreign_note, table

APART, ONE_TENANT = "apart", "one-tenant"
PLACES = 16  # candidates sent together
ALPHA = 1e-3
BLIND_AUC, SEEING_AUC = 0.55, 0.95
REUSE_RATIO = 0.5
NONE = float("nan")


class Cell(NamedTuple):
    """One kind of pairs: whose caches they are, pages of the prefix, share of the background."""

    who: str
    pages: int
    load: float

    def __str__(self) -> str:
        return f"{self.who} {self.pages}p {self.load:.0%}"


@dataclass(slots=True)
class Samples:
    """All that was timed, in milliseconds."""

    pairs: dict[Cell, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    reuse: list[tuple[float, float]] = field(default_factory=list)  # (warm, cold)
    ranks: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Figures:
    """What one cell's pairs say. Times in milliseconds; p-values as corrected by Holm."""

    cell: Cell
    number: int
    control_ms: float
    median: Interval
    low: Interval
    wilcoxon: float
    sign: float
    attacker: Interval

    @property
    def reach(self) -> float:
        """The smallest delta that these pairs show."""
        return max(self.median.reach, self.low.reach)


def figures(samples: Samples, chance: np.random.Generator) -> list[Figures]:
    """Of every cell that has pairs. Holm's family: both tests of all cells that must show nothing;
    for those that must show something it only makes that harder.
    """
    cells = {cell: Pairs.of(pairs) for cell, pairs in sorted(samples.pairs.items()) if pairs}
    raw = [p for pairs in cells.values() for p in (wilcoxon_p(pairs), sign_p(pairs))]
    adjusted = iter(holm(raw))
    return [
        Figures(
            cell=cell,
            number=len(pairs),
            control_ms=float(np.median(pairs.control)),
            median=interval(pairs, median_difference, chance),
            low=interval(pairs, low_difference, chance),
            wilcoxon=next(adjusted),
            sign=next(adjusted),
            attacker=attacker_auc([pairs], chance),
        )
        for cell, pairs in cells.items()
    ]


def delta_ms(found: list[Figures], pages: int) -> float:
    """How near to 0 the difference must be shown: 1 % of the cold time without a background, or a
    quarter of what a hit saves a page, whichever is less. NaN if that wasn't measured.
    """
    by_cell = {one.cell: one for one in found}
    cold, shared = by_cell.get(Cell(APART, pages, 0.0)), by_cell.get(Cell(ONE_TENANT, pages, 0.0))
    if cold is None or shared is None:
        return NONE
    return min(cold.control_ms / 100, -shared.median.estimate / pages / 4)


def targets(
    found: list[Figures], samples: Samples, chance: np.random.Generator
) -> dict[str, dict[str, Any]]:
    """What must hold, each with its bar. The attacker's is over all cells: for one of them 4,000
    pairs would be too few to stay below it safely.
    """
    bars: dict[str, dict[str, Any]] = {}
    for one in found:
        name = f"{one.cell.who}_{one.cell.pages}p_{one.cell.load:.0%}".replace("%", "")
        if one.cell.who == APART:
            bars[f"{name}_p"] = at_least(min(one.wilcoxon, one.sign), ALPHA)
            bars[f"{name}_within_delta_ms"] = at_most(one.reach, delta_ms(found, one.cell.pages))
        else:
            bars[f"{name}_seen_p"] = at_most(max(one.wilcoxon, one.sign), ALPHA)
            bars[f"{name}_seen_auc"] = at_least(one.attacker.estimate, SEEING_AUC)
    apart = [Pairs.of(pairs) for cell, pairs in samples.pairs.items() if cell.who == APART]
    bars["attacker_auc_upper"] = at_most(attacker_auc(apart, chance).high, BLIND_AUC)
    order = uniform_p(samples.ranks, PLACES) if samples.ranks else NONE
    bars["order_of_completion_p"] = at_least(order, ALPHA)
    ratio = interval(Pairs.of(samples.reuse), ratio_of_medians, chance, 0.95)
    bars["own_reuse_ratio_upper"] = at_most(ratio.high, REUSE_RATIO)
    controls = {one.cell.who for one in found} - {APART}
    bars["positive_controls"] = at_least(len(controls), len(FACTORIES) + 1)
    bars["errors"] = at_most(len(samples.errors), 0)
    return bars


HEAD = (
    *("pairs of", "n", "control ms", "median diff", "reach", "10 % diff", "reach"),
    *("Wilcoxon p", "sign p", f"AUC of {PROBES}", "upper"),
)


def report(samples: Samples, seed: str, file: Path, foreign: float) -> None:
    """Print it all."""
    chance = np.random.default_rng(list(seed.encode()))
    found = figures(samples, chance)
    print(table(HEAD, [_row(one) for one in found]))
    for one in found:
        if one.cell.who == APART:
            print(_shown(one, delta_ms(found, one.cell.pages)))
    print(foreign_note(foreign))
    for error in samples.errors[:10]:
        print(f"error: {error}")
    print(f"samples: {file}")
    raw = {
        "foreign_cpu": foreign,
        "seed": seed,
        "samples": str(file),
        "ranks": np.bincount(samples.ranks, minlength=PLACES).tolist(),
        "warm_and_cold_ms": samples.reuse,
        "cells": {str(one.cell): _raw(one) for one in found},
        "errors": samples.errors,
    }
    emit("isolation", targets(found, samples, chance), raw)


def _row(one: Figures) -> tuple[object, ...]:
    differences = (one.median.estimate, one.median.reach, one.low.estimate, one.low.reach)
    tests = (one.wilcoxon, one.sign, one.attacker.estimate, one.attacker.high)
    return (str(one.cell), one.number, one.control_ms, *differences, *tests)


def _shown(one: Figures, delta: float) -> str:
    """What these pairs can say, and how many it would take."""
    text = f"{one.cell}: {one.number} pairs show +-{one.reach:.2f} ms; delta is {delta:.2f} ms"
    if not delta > 0 or one.reach <= delta:
        return text
    return f"{text}, which takes about {pairs_needed(one.number, one.reach, delta):,}"


def _raw(one: Figures) -> dict[str, Any]:
    return {
        "n": one.number,
        "control_ms": one.control_ms,
        "median_diff": [one.median.estimate, one.median.low, one.median.high],
        "low_diff": [one.low.estimate, one.low.low, one.low.high],
        "wilcoxon_p": one.wilcoxon,
        "sign_p": one.sign,
        "auc": [one.attacker.estimate, one.attacker.low, one.attacker.high],
    }
