"""Lanes, on which benchmarks/bench_integrity compares steps: the same work in each, always."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.lanes import Lanes, OutOfStep, Shape, Supply
from engines.embedded.engine import EmbeddedEngine
from tests.engines.conftest import EngineFactory

ON_BOTH_BACKENDS = True

SHAPE = Shape("short", 12, 4, 9)
CLIENTS = 3
MakeLanes = Callable[..., Lanes]


@pytest.fixture
def make_lanes(tiny_dir: Path, make_tiny: EngineFactory) -> MakeLanes:
    def make(number: int, *, overlap: bool) -> Lanes:
        lanes = Lanes([make_tiny(overlap=overlap) for _ in range(number)], random.Random(1))
        lanes.begin(Supply(tiny_dir, SHAPE, "seed"), CLIENTS)
        return lanes

    return make


def engines(lanes: Lanes) -> list[EmbeddedEngine]:
    return [lane.engine for lane in lanes.lanes]


def run(lanes: Lanes, blocks: int) -> None:
    for _ in range(blocks):
        lanes.block()


def test_a_step_of_a_block_is_checked_in_one_lane_and_which_one_is_drawn(
    make_lanes: MakeLanes,
) -> None:
    lanes = make_lanes(3, overlap=False)
    checked = set()
    for _ in range(30):
        before = [engine.verifier.pages_checked for engine in engines(lanes)]
        lanes.block()
        after = [engine.verifier.pages_checked for engine in engines(lanes)]
        (lane,) = [i for i in range(3) if after[i] > before[i]]
        checked.add(lane)
    assert checked == {0, 1, 2}
    assert lanes.checked()[1] == sum(engine.verifier.pages_checked for engine in engines(lanes))


def test_requests_that_end_are_followed_by_others(make_lanes: MakeLanes) -> None:
    lanes = make_lanes(3, overlap=False)
    for _ in range(40):
        lanes.block()
        assert all(
            len(e.scheduler.running) + len(e.scheduler.waiting) == CLIENTS for e in engines(lanes)
        )


def test_windows_of_steps_that_overlap_end_with_nothing_on_its_way(make_lanes: MakeLanes) -> None:
    """Else a step would be checked before in one mode and after in the other, and fail."""
    lanes = make_lanes(2, overlap=True)
    for _ in range(12):
        lanes.pair(3)
    first, second = (engine.stats() for engine in engines(lanes))
    assert first.output_tokens == second.output_tokens > 0


def test_they_begin_anew_with_other_requests(make_lanes: MakeLanes, tiny_dir: Path) -> None:
    lanes = make_lanes(3, overlap=False)
    lanes.block()
    lanes.begin(Supply(tiny_dir, SHAPE, "other"), 1)
    lanes.block()
    assert all(len(engine.scheduler.running) == 1 for engine in engines(lanes))


def test_lanes_that_differ_are_told(make_lanes: MakeLanes) -> None:
    lanes = make_lanes(3, overlap=False)
    lanes.block()
    seq = engines(lanes)[0].scheduler.running[0]
    seq.tokens[-1] ^= 1
    with pytest.raises(OutOfStep):
        run(lanes, 20)
