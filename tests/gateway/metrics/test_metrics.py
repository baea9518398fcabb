"""What a gateway counts, as Prometheus' own parser reads it, and the way there."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.metrics.counts import SECONDS, Counts, Histogram
from gateway.metrics.families import (
    FAMILIES,
    MAX_TENANTS,
    OTHER,
    Sample,
    Told,
    all_of,
    family_of,
    text,
)
from gateway.metrics.gauges import gauges
from gateway.metrics.socket import answering, ask_all
from gateway.relay.place import Place
from gateway.relay.placement import Placement
from gateway.relay.transport import Transport
from gateway.relay.trust import Counters, Trust

ROUTES: Mapping[str, object] = {"/v1/completions": None}


def ended(**more: Any) -> dict[str, Any]:
    return {
        "path": "/v1/completions",
        "status": 200,
        "duration_ms": 120.0,
        "tenant_name": "acme",
        "model": "echo",
        "stream": True,
        "outcome": "completed",
        "ttft_ms": 30.0,
        "input_tokens": 10,
        "cached_input_tokens": 4,
        "output_tokens": 7,
        **more,
    }


def parsed(counts: Counts) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    parser = pytest.importorskip("prometheus_client.parser")
    written = text([Told(7, all_of(counts.samples()))])
    return {
        (sample.name, tuple(sorted((k, v) for k, v in sample.labels.items() if k != "pid"))): (
            sample.value
        )
        for family in parser.text_string_to_metric_families(written)
        for sample in family.samples
    }


def test_requests_and_their_tokens_are_counted_by_class() -> None:
    counts = Counts(ROUTES)
    counts.saw(ended())
    counts.saw(ended(stream=False, ttft_ms=None))
    nothing = dict.fromkeys(("input_tokens", "cached_input_tokens", "output_tokens", "ttft_ms"))
    counts.saw(ended(outcome="refused", status=400, code="bad", **nothing))
    found = parsed(counts)
    of = (("model", "echo"), ("tenant", "acme"))
    for token_class, number in (("input", 12), ("cached_input", 8), ("output", 14)):
        assert found["bulkhead_tokens_total", (("class", token_class), *of)] == number
    completed = (("model", "echo"), ("outcome", "completed"), ("tenant", "acme"))
    assert found["bulkhead_completions_total", completed] == 2
    assert found[
        "bulkhead_requests_total",
        (("code", "bad"), ("route", "/v1/completions"), ("status", "400")),
    ] == 1  # fmt: skip
    assert found["bulkhead_first_token_seconds_count", (("model", "echo"),)] == 1
    assert found[
        "bulkhead_request_seconds_count", (("model", "echo"), ("streamed", "true"))
    ] == 2  # fmt: skip


def test_what_callers_choose_makes_no_series() -> None:
    """Paths, and tenants beyond so many, are told as others."""
    counts = Counts(ROUTES)
    for number in range(MAX_TENANTS + 50):
        counts.saw(ended(tenant_name=f"tenant-{number}"))
        counts.saw({"path": f"/v1/{number}", "status": 404, "duration_ms": 1.0})
    found = parsed(counts)
    assert found["bulkhead_requests_total", (("code", ""), ("route", OTHER), ("status", "404"))] > (
        MAX_TENANTS
    )
    tenants = {dict(labels).get("tenant") for _, labels in found}
    assert len(tenants - {None}) == MAX_TENANTS + 1
    assert OTHER in tenants


def test_a_histogram_adds_up() -> None:
    histogram = Histogram()
    for seconds in (0.01, 0.02, 400.0):
        histogram.add(seconds)
    samples = list(histogram.samples("x", {}))
    buckets = [s.value for s in samples if s.name == "x_bucket"]
    assert buckets == [1, 2, *[2] * (len(SECONDS) - 2), 3]
    assert [s.value for s in samples[-2:]] == [pytest.approx(400.03), 3]


def test_gauges_tell_who_waits_and_where_requests_are() -> None:
    placement = Placement()
    line = placement.line("m")
    line.set_places([Place("a", "http://host/v1", Transport("/nowhere.sock"))])
    assert line.take(line.turn(1))
    found = {
        (s.name, s.labels.get("place")): s.value
        for s in gauges(3, placement, is_blind=True, in_doubt=False)
    }
    assert found["bulkhead_place_in_flight", "a"] == 1
    assert found["bulkhead_place_takes", "a"] == 1
    assert found["bulkhead_waiting", None] == 0
    assert found["bulkhead_requests_in_progress", None] == 3
    assert found["bulkhead_keys_blind", None] == 1


def test_gauges_tell_which_guards_watch() -> None:
    placement = Placement()
    place = Place("a", "http://host/v1", Transport("/nowhere.sock"))
    placement.line("m").set_places([place])
    place.guard = Trust(0.0)

    def found() -> dict[str, float]:
        every = gauges(0, placement, is_blind=False, in_doubt=False)
        return {s.name: s.value for s in every if s.labels == {"model": "m", "place": "a"}}

    assert (found()["bulkhead_guard_trusted"], found()["bulkhead_place_takes"]) == (0, 0)
    place.guard.counted(Counters("b", 7, 28, 1, poisoned=False), 0.0, 1.0)
    place.guard.violated({})
    told = found()
    assert (told["bulkhead_guard_trusted"], told["bulkhead_place_takes"]) == (1, 1)
    assert (told["bulkhead_guard_steps"], told["bulkhead_guard_violations"]) == (7, 1)
    assert told["bulkhead_guard_unwatched"] == 0
    place.guard.board("a salt")
    place.guard.judge(100.0)
    assert found()["bulkhead_guard_unwatched"] == 1


def test_what_a_limit_refused_is_counted_by_whose_and_of_what() -> None:
    counts = Counts(ROUTES)
    for _ in range(2):
        counts.saw(ended(outcome=None, status=429, code="rate_limit_exceeded", limit="tenant rpm"))
    found = parsed(counts)
    assert found["bulkhead_limited_total", (("kind", "rpm"), ("scope", "tenant"))] == 2


def test_each_sample_belongs_to_a_family() -> None:
    counts = Counts(ROUTES)
    counts.saw(ended())
    told = [*counts.samples(), *gauges(0, Placement(), is_blind=False, in_doubt=False)]
    assert {family_of(sample.name) for sample in told} <= set(FAMILIES)


async def test_whoever_asks_hears_all_workers_that_live(tmp_path: Path) -> None:
    """A killed one's socket is passed over; so is what makes no sense, or says nothing."""
    counts = Counts(ROUTES)
    counts.saw(ended())
    (tmp_path / "gateway-1.sock").touch()

    def samples() -> list[Sample]:
        now = gauges(1, Placement(), is_blind=False, in_doubt=True)
        return [*counts.samples(), *now]

    async def nonsense(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"what?")
        writer.close()

    other = await asyncio.start_unix_server(nonsense, tmp_path / "gateway-2.sock")
    async with answering(tmp_path, samples):
        mode = (tmp_path / f"gateway-{os.getpid()}.sock").stat().st_mode
        assert stat.S_IMODE(mode) == 0o600
        (told,) = await ask_all(tmp_path)
        assert told == Told(os.getpid(), all_of(samples()))
    assert await ask_all(tmp_path) == []
    other.close()
    await other.wait_closed()
