"""What the gateway itself adds: Bulkhead before a fake engine, beside other ways to it.

    bulkhead           all of it: keys, limits, budgets, prices, the durable ledger, metering,
                       counters, the log of requests. Its state lies in memory; `on disk` is the
                       same on this disk
    bare pass-through  raw ASGI on granian that forwards bytes with aiohttp: the floor
    naive              Starlette and httpx on uvicorn
    sglang-router, tensorzero, litellm   where they are installed (benchmarks/gateway/peers.py)
    direct             no gateway

Gateways share core 0, load and engine core 1; one is loaded at a time, in turns, and each figure
is the median of the rounds. Requests are of 0.5 KB, answers of 0.7 KB.

How to read it: the ratios. CPU is of the gateway's process tree and the steadiest figure. `added`
is the difference to direct. A paced stream sends 50 chunks/s; TTFC is the time to its first chunk,
the gap that between two chunks. `saturated` streams come as fast as they can. `far`: 200 clients
of an engine that takes 100 ms. A stuck reader reads nothing of 40 MB. `nan`: not tried, as it would
take minutes.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

from benchmarks.bulkhead import fdatasync_ms
from benchmarks.gateway.cancels import cancels
from benchmarks.gateway.scenes import Figures, crowd, far, paced, saturated, serial, stuck
from benchmarks.gateway.told import Found, tell
from benchmarks.gateway.ways import DIRECT, ON_DISK, OURS, Way, ways
from benchmarks.process import Foreign, end_on_sigterm

SCENES = (serial, crowd, paced, saturated, far)
EASY = (serial, crowd)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each cell of each round")
    parser.add_argument("--only", default="", help="ways, by comma; bulkhead and direct always")
    options = parser.parse_args()
    end_on_sigterm()
    foreign, fdatasync = Foreign(), fdatasync_ms()
    rounds: list[dict[str, Figures]] = []
    with ways() as (engine, every):
        wanted = {OURS, DIRECT, *options.only.split(",")}
        chosen = [way for way in every if not options.only or way.name in wanted]
        for way in chosen:
            _measured(way, 0.3)  # warm up
        for _ in range(options.rounds):
            rounds.append({way.name: _measured(way, options.seconds) for way in chosen})
        others = [way for way in chosen if way.name not in (DIRECT, ON_DISK)]
        left = {way.name: cancels(way, engine) for way in others}
        grown = {way.name: stuck(way) for way in others}
        ready = {way.name: way.ready_s for way in chosen}
    tell(Found(rounds, left, grown, ready, fdatasync, foreign.share()))


def _measured(way: Way, seconds: float) -> Figures:
    figures: Figures = defaultdict(float)
    for scene in EASY if way.is_slow else SCENES:
        for name, value in scene(way, seconds).items():
            figures[name] = figures["errors"] + value if name == "errors" else value
    figures["memory_mb"] = way.child.memory_bytes() / 1e6 if way.child else 0.0
    return dict(figures)


if __name__ == "__main__":
    main()
