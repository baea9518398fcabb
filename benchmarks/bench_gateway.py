"""What the gateway itself adds: Bulkhead before a fake upstream, beside plainer ways to it.

    bulkhead           all of it: keys, schema, the durable ledger, metering, the request log
    bare pass-through  raw ASGI on granian that forwards bytes with aiohttp: the floor
    naive              Starlette and httpx on uvicorn
    direct             no gateway

Gateways share core 0, load and upstream core 1; one is loaded at a time, in turns, and each figure
is the median of the rounds. Requests are of 0.5 KB, answers of 0.7 KB.

How to read it: the ratios. `x naive` and `x bare` are within each round. CPU is of the gateway's
process tree and the steadiest figure; Bulkhead waits twice a request for the disk (`fsync` below),
the others for nothing. `added` is the difference to direct. A paced stream sends 50 chunks/s;
TTFC is the time to its first chunk, the gap that between two chunks. `saturated` streams come as
fast as they can.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from benchmarks.bulkhead import fsync_ms
from benchmarks.gateways import BARE, DIRECT, NAIVE, OURS, Way, ways
from benchmarks.load import Run, closed_loop
from benchmarks.process import Foreign, end_on_sigterm
from benchmarks.report import at_least, at_most, emit, foreign_note, median, table

PACE_MS = 20
STREAMS = 100
QUESTION = "Tell me, in a few words and with care, what a bulkhead is for. " * 6
HEAD = (
    *("gateway, on one core", "req/s c=1", "p50 ms", "req/s c=50", "CPU ms/req"),
    *(
        "TTFC p50/p99 ms",
        "gap p50/p99 ms",
        "CPU paced",
        "chunks/s saturated",
        "memory MB",
        "errors",
    ),
)

Figures = dict[str, float]
Measure = Callable[[Way, float], Figures]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each cell of each round")
    options = parser.parse_args()
    end_on_sigterm()
    foreign, fsync = Foreign(), fsync_ms()
    rounds: list[dict[str, Figures]] = []
    with ways() as all_ways:
        for way in all_ways:
            _measure_all(way, 0.3)  # warm up
        for _ in range(options.rounds):
            rounds.append({way.name: _measure_all(way, options.seconds) for way in all_ways})
    _report(rounds, foreign.share(), fsync)


def _measure_all(way: Way, seconds: float) -> Figures:
    figures: Figures = defaultdict(float)
    for measure in (_serial, _crowd, _paced, _saturated):
        for name, value in measure(way, seconds).items():
            figures[name] = figures["errors"] + value if name == "errors" else value
    figures["memory_mb"] = way.child.memory_bytes() / 1e6 if way.child else 0.0
    return dict(figures)


def _serial(way: Way, seconds: float) -> Figures:
    """One client, unstreamed: latency."""
    run, _ = _load(way, _bodies("plain"), 1, seconds)
    return {"rps_1": run.requests_per_s, "p50_ms_1": run.total_ms(50), "errors": len(run.errors)}


def _crowd(way: Way, seconds: float) -> Figures:
    """Fifty clients, unstreamed: throughput of a core, and CPU time a request."""
    run, cpu_s = _load(way, _bodies("plain"), 50, seconds)
    return {
        "rps_50": run.requests_per_s,
        "p99_ms_50": run.total_ms(99),
        "cpu_ms": cpu_s / max(1, len(run.good)) * 1000,
        "errors": len(run.errors),
    }


def _paced(way: Way, seconds: float) -> Figures:
    """A hundred streams of 50 chunks/s that start spread over a second: latency of chunks."""
    bodies = _bodies(f"paced-{PACE_MS}", chunks=int(seconds * 1000 / PACE_MS))
    run, cpu_s = _load(way, bodies, STREAMS, requests=STREAMS, stagger_s=1.0)
    return {
        "ttfc_p50_ms": run.ttft_ms(50),
        "ttfc_p99_ms": run.ttft_ms(99),
        "gap_p50_ms": run.gap_ms(50),
        "gap_p99_ms": run.gap_ms(99),
        "cpu_paced": cpu_s / run.wall_s,
        "errors": len(run.errors),
    }


def _saturated(way: Way, seconds: float) -> Figures:
    """Sixteen streams at a time, 64 chunks each, as fast as they come."""
    run, _ = _load(way, _bodies("plain", chunks=64), 16, seconds)
    return {"chunks_per_s": run.events_per_s, "errors": len(run.errors)}


def _load(
    way: Way,
    bodies: Iterator[bytes],
    clients: int,
    seconds: float = 0.0,
    *,
    requests: int = 0,
    stagger_s: float = 0.0,
) -> tuple[Run, float]:
    """A run, and the gateway's CPU seconds meanwhile."""
    before = way.cpu_s()
    run = asyncio.run(
        closed_loop(
            way.target,
            bodies,
            clients,
            requests=requests,
            seconds=seconds,
            stagger_s=stagger_s,
            patience_s=30,
        )
    )
    return run, way.cpu_s() - before


def _bodies(model: str, chunks: int = 0) -> Iterator[bytes]:
    """The same request for ever; with `chunks`, streamed."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": chunks or 64,
        "temperature": 0.7,
    }
    if chunks:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return itertools.repeat(msgspec.json.encode(body))


def _report(rounds: list[dict[str, Figures]], foreign: float, fsync: float) -> None:
    medians = {
        way: {name: median([one[way][name] for one in rounds]) for name in rounds[0][way]}
        for way in rounds[0]
    }
    print(table(HEAD, [_row(way, figures) for way, figures in medians.items()]))

    def ratio(name: str, to: str) -> float:
        return median([one[OURS][name] / one[to][name] for one in rounds if one[to][name]])

    def added(name: str, way: str = OURS) -> float:
        return median([one[way][name] - one[DIRECT][name] for one in rounds])

    ratios = [
        (name, *(ratio(name, to) for to in (BARE, NAIVE)))
        for name in ("rps_1", "rps_50", "cpu_ms", "chunks_per_s", "cpu_paced")
    ]
    print("\n" + table(("bulkhead", "x bare", "x naive"), ratios))
    adds = [
        (way, *(added(name, way) for name in ("p50_ms_1", "ttfc_p50_ms", "ttfc_p99_ms")))
        for way in (OURS, BARE, NAIVE)
    ]
    print("\n" + table(("added ms", "p50 c=1", "TTFC p50", "TTFC p99"), adds))
    print(f"\none fsync of the ledger's disk: {fsync:.2f} ms; {foreign_note(foreign)}")
    ours = medians[OURS]
    targets = {
        "x_naive_rps_at_50": at_least(ratio("rps_50", NAIVE), 12),
        "cpu_ms_per_request": at_most(ours["cpu_ms"], 0.25),
        "added_ttfc_p50_ms": at_most(added("ttfc_p50_ms"), 2),
        "added_ttfc_p99_ms": at_most(added("ttfc_p99_ms"), 10),
        "gap_p99_over_pace": at_most(ours["gap_p99_ms"] / PACE_MS, 1.25),
        "cpu_share_paced": at_most(ours["cpu_paced"], 0.7),
        "memory_mb": at_most(ours["memory_mb"], 120),
    }
    raw = {"foreign_cpu": foreign, "fsync_ms": fsync, "medians": medians, "rounds": rounds}
    emit("gateway", targets, raw)


def _row(way: str, one: Figures) -> tuple[object, ...]:
    return (
        way,
        *(one[name] for name in ("rps_1", "p50_ms_1", "rps_50", "cpu_ms")),
        f"{one['ttfc_p50_ms']:.1f}/{one['ttfc_p99_ms']:.1f}",
        f"{one['gap_p50_ms']:.1f}/{one['gap_p99_ms']:.1f}",
        f"{one['cpu_paced']:.0%}",
        one["chunks_per_s"],
        f"{one['memory_mb']:.0f}",
        f"{one['errors']:.0f}",
    )


if __name__ == "__main__":
    main()
