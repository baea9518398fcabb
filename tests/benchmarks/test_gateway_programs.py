"""The fake engine and the load client in C count right, and the engine sees who leaves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.gateway.bodies import body
from benchmarks.gateway.cancels import MOMENTS, cancels
from benchmarks.gateway.programs import Engine, Load, engine, run
from benchmarks.gateway.ways import PATH, Way
from benchmarks.load import Target


@pytest.fixture
def up() -> Iterator[Engine]:
    with engine(None) as running:
        yield running


def test_every_request_is_answered_and_counted(up: Engine) -> None:
    target = Target(up.url, PATH)
    whole = run(target, body("plain"), Load(5, requests=40))
    assert (whole["good"], whole["errors"], whole["events"]) == (40, 0, 0)
    assert 0 < whole["total_ms_p50"] <= whole["total_ms_p99"]
    stream = run(target, body("paced-1", 10), Load(3, requests=6, chunks=10))
    assert (stream["good"], stream["errors"]) == (6, 0)
    assert stream["events"] == 6 * (10 + 3), "and the end, the usage and [DONE]"
    assert stream["ttfc_ms_p50"] <= stream["total_ms_p50"]
    assert up.stats() == {"requests": 46, "open": 0, "aborted": 0}


def test_the_engine_sees_a_client_leave_in_each_phase(up: Engine) -> None:
    seen = cancels(Way("direct", Target(up.url, PATH), None), up)
    assert len(seen) == 2 * len(MOMENTS)
    assert None not in seen.values()
    assert up.stats()["aborted"] == len(seen)
