"""What bench_integrity found: the table, and the targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.integrity_latency import Latencies, Quantile, quantiles
from benchmarks.overhead import LEVEL, Cost, ratio
from benchmarks.paired import Interval, Pairs, interval
from benchmarks.report import at_most, emit, foreign_note, table

SHARE = 0.3  # percent of a step, by the checks' own clock
BAR = 1.0  # percent of a step's CPU time, as pairs of steps show it
PAGE_NS = 1.0  # a page reference, where there are so many that nothing else counts:
MANY_PAGES = 10_000
HALF_WIDTH = 0.5  # percent points: a wider interval is no verdict


@dataclass(slots=True)
class Cell:
    """One kind of work. Microseconds are of both checks of a step, by their own clock."""

    name: str
    cost: Cost
    step_ms: float
    pages: float  # a step
    check_us: float
    ns_a_page: float
    windows: Pairs = field(default_factory=lambda: Pairs.of([]))  # wall seconds

    @property
    def share(self) -> float:
        """Both checks in percent of the step."""
        return self.check_us / self.step_ms / 10

    def target(self) -> dict[str, Any]:
        """The cost's upper bound, which counts only if the interval is narrow."""
        bar = at_most(self.cost.cost.high, BAR)
        return bar | {"ok": bar["ok"] and self.cost.is_known_within(HALF_WIDTH)}

    def throughput(self, chance: np.random.Generator) -> Interval:
        """Tokens/s with the check over tokens/s without it: the same tokens in each window."""
        turned = Pairs(self.windows.control, self.windows.candidate)
        return interval(turned, ratio, chance, LEVEL)


HEAD = (
    *("CPU time a step", "step ms", "pages", "blocks", "cost %", "+-", "A/A %", "+-", "sums %"),
    *("check us", "% of a step", "ns a page", "tokens/s on/off", "from", "to"),
)
HTTP_HEAD = ("over HTTP, ms", "check on", "off", "ratio", "from", "to")


def report(
    cells: Sequence[Cell], latencies: Latencies, seed: str, backend: str, foreign: float
) -> None:
    """Print it all."""
    chance = np.random.default_rng(list(seed.encode()))
    throughputs = [cell.throughput(chance) for cell in cells]
    found = quantiles(latencies, chance)
    rows = [_row(cell, one) for cell, one in zip(cells, throughputs, strict=True)]
    print("\n" + table(HEAD, rows))
    print("\n" + table(HTTP_HEAD, [_http_row(one) for one in found]))
    print(f"{len(latencies.total)} pairs of requests; {foreign_note(foreign)}")
    for cell in cells:
        if not cell.cost.is_known_within(HALF_WIDTH):
            print(f"{cell.name}: no verdict from {cell.cost.blocks} blocks")
    for error in latencies.errors[:10]:
        print(f"error: {error}")
    raw = {
        "foreign_cpu": foreign,
        "seed": seed,
        "backend": backend,
        "cells": [_raw(cell, one) for cell, one in zip(cells, throughputs, strict=True)],
        "http": {one.name: [one.with_check, one.without, *_list(one.ratio)] for one in found},
        "http_pairs": len(latencies.total),
        "errors": latencies.errors,
    }
    emit("integrity", targets(cells, latencies), raw)


def targets(cells: Sequence[Cell], latencies: Latencies) -> dict[str, dict[str, Any]]:
    """What must hold, in percent of a step and in nanoseconds."""
    bars: dict[str, dict[str, Any]] = {}
    for cell in cells:
        bars[f"{_key(cell.name)}_percent"] = at_most(cell.share, SHARE)
        bars[f"{_key(cell.name)}_upper_percent"] = cell.target()
        if cell.pages >= MANY_PAGES:
            bars[f"{_key(cell.name)}_ns_a_page"] = at_most(cell.ns_a_page, PAGE_NS)
    return bars | {"errors": at_most(len(latencies.errors), 0)}


def _key(name: str) -> str:
    return name.replace(" ", "_").replace("=", "")


def _row(cell: Cell, throughput: Interval) -> tuple[object, ...]:
    cost, noise = cell.cost, cell.cost.noise
    return (
        *(cell.name, cell.step_ms, cell.pages, cost.blocks, cost.cost.estimate, cost.half_width),
        *(noise.estimate, noise.half_width, cost.by_sums, cell.check_us, cell.share),
        cell.ns_a_page,
        *_list(throughput),
    )


def _http_row(one: Quantile) -> tuple[object, ...]:
    return (one.name, one.with_check, one.without, *_list(one.ratio))


def _list(found: Interval) -> list[float]:
    return [found.estimate, found.low, found.high]


def _raw(cell: Cell, throughput: Interval) -> dict[str, Any]:
    return {
        "name": cell.name,
        "blocks": cell.cost.blocks,
        "step_ms": cell.step_ms,
        "pages": cell.pages,
        "cost_percent": _list(cell.cost.cost),
        "aa_percent": _list(cell.cost.noise),
        "by_sums_percent": cell.cost.by_sums,
        "check_us": cell.check_us,
        "ns_a_page": cell.ns_a_page,
        "throughput_ratio": _list(throughput),
        "windows": len(cell.windows),
    }
