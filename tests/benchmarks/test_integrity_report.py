"""What bench_integrity makes of what it measured: nothing passes by not being known."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.integrity_latency import Latencies, quantiles
from benchmarks.integrity_report import Cell, report, targets
from benchmarks.overhead import FEWEST, Block, cost
from benchmarks.paired import Pairs


def cell(percent: float, blocks: int = 4 * FEWEST, noise: float = 0.001) -> Cell:
    chance = np.random.default_rng(1)
    times = chance.lognormal(0, noise, (blocks, 3)) * (1 + percent / 100, 1, 1)
    found = cost([Block(*map(float, block)) for block in times], chance)
    return Cell("long prompt c=8", found, 40.0, 512.0, 200.0, 10.0, Pairs.of([(2.02, 2.0)] * 5))


def is_met(one: Cell) -> bool:
    ok: bool = targets([one], Latencies())["long_prompt_c8_upper_percent"]["ok"]
    return ok


def test_a_check_that_is_shown_to_be_cheap_passes() -> None:
    assert is_met(cell(0.6))


@pytest.mark.parametrize(
    "one",
    [cell(1.2), cell(0.98, noise=0.004), cell(0.0, FEWEST - 1), cell(-3.0, noise=0.05)],
    ids=["dear", "not shown", "too few", "too noisy"],
)
def test_all_else_fails(one: Cell) -> None:
    assert not is_met(one)


def test_a_request_that_failed_is_a_fault() -> None:
    assert not targets([], Latencies(errors=["status 503"]))["errors"]["ok"]


def test_throughput_is_above_one_where_windows_with_the_check_were_shorter() -> None:
    one = cell(0.5)
    assert one.throughput(np.random.default_rng(0)).estimate == pytest.approx(2 / 2.02)


def test_quantiles_compare_the_arms() -> None:
    chance = np.random.default_rng(2)
    off = chance.lognormal(0, 0.1, 300) * 100
    found = quantiles(Latencies(total=list(zip(off * 1.5, off, strict=True))), chance)
    assert [one.name for one in found] == ["whole answer p50", "whole answer p95"]
    for one in found:
        assert one.ratio.low <= 1.5 <= one.ratio.high + 1e-9
        assert one.with_check == pytest.approx(one.without * 1.5)


def test_the_report_ends_in_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    report(
        [cell(0.6), cell(0.0, 1)], Latencies([(2.0, 1.0)] * 9, [(9.0, 8.0)] * 9), "7", "native", 0.0
    )
    said = capsys.readouterr().out.splitlines()
    told = json.loads(said[-1])
    assert told["bench"] == "integrity"
    assert told["raw"]["seed"] == "7"
    assert "long prompt c=8: no verdict from 1 blocks" in said
