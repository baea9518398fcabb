"""What is measured of each way to the engine: one scene, one function, a few figures."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

from benchmarks.gateway.bodies import FAR_MS, PACE_MS, body
from benchmarks.gateway.programs import Load, run
from benchmarks.gateway.ways import Way

STREAMS = 200
STUCK = 100  # clients that don't read
STUCK_S = 4.0

Figures = dict[str, float]
Scene = Callable[[Way, float], Figures]


def serial(way: Way, seconds: float) -> Figures:
    """One client, unstreamed: latency."""
    found, _ = _load(way, "plain", Load(1, seconds=seconds))
    return {"rps_1": _rate(found), "p50_ms_1": _ms(found, "total_ms_p50"), **_errors(found)}


def crowd(way: Way, seconds: float) -> Figures:
    """Fifty clients, unstreamed: throughput of a core, and CPU time a request."""
    found, cpu_s = _load(way, "plain", Load(50, seconds=seconds))
    return {
        "rps_50": _rate(found),
        "p99_ms_50": _ms(found, "total_ms_p99"),
        "cpu_ms": cpu_s / max(1, found["good"]) * 1000,
        **_errors(found),
    }


def paced(way: Way, seconds: float) -> Figures:
    """Two hundred streams of 50 chunks/s that start spread over a second: latency of chunks."""
    chunks = int(seconds * 1000 / PACE_MS)
    load = Load(STREAMS, requests=STREAMS, stagger_s=1.0, chunks=chunks)
    found, cpu_s = _load(way, f"paced-{PACE_MS}", load)
    return {
        "ttfc_p50_ms": _ms(found, "ttfc_ms_p50"),
        "ttfc_p99_ms": _ms(found, "ttfc_ms_p99"),
        "gap_p99_ms": _ms(found, "gap_ms_p99"),
        "cpu_paced": cpu_s / found["wall_s"],
        **_errors(found),
    }


def saturated(way: Way, seconds: float) -> Figures:
    """Sixteen streams at a time, 64 chunks each, as fast as they come."""
    found, _ = _load(way, "plain", Load(16, seconds=seconds, chunks=64))
    return {"chunks_per_s": found["events"] / found["wall_s"], **_errors(found)}


def far(way: Way, seconds: float) -> Figures:
    """Two hundred clients of an engine that takes 100 ms: what is added to them."""
    found, _ = _load(way, f"slow-{FAR_MS}", Load(200, seconds=seconds, stagger_s=0.1))
    return {
        "far_p50_ms": _ms(found, "total_ms_p50"),
        "far_p99_ms": _ms(found, "total_ms_p99"),
        "far_rps": _rate(found),
        **_errors(found),
    }


def stuck(way: Way) -> float:
    """KiB that the gateway's memory grows by for each client that doesn't read its 40 MB."""
    if way.child is None:
        return 0.0
    parts = urlsplit(way.target.url)
    before = way.child.memory_bytes()
    with ExitStack() as stack:
        for _ in range(STUCK):
            sock = stack.enter_context(
                socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 80))
            )
            sock.sendall(way.target.request(body(way.prefix + "flood", 64)))
        time.sleep(STUCK_S)
        grown = way.child.memory_bytes() - before
    return grown / STUCK / 1024


def _load(way: Way, model: str, load: Load) -> tuple[dict[str, Any], float]:
    """A run, and the gateway's CPU seconds meanwhile."""
    before = way.cpu_s()
    found = run(way.target, body(way.prefix + model, load.chunks), load)
    if found["errors"]:
        print(f"  {way.name}: {found['errors']} errors; the first: {found['first_error']}")
    return found, way.cpu_s() - before


def _rate(found: dict[str, Any]) -> float:
    return float(found["good"] / found["wall_s"])


def _ms(found: dict[str, Any], name: str) -> float:
    return float("nan") if found[name] is None else float(found[name])


def _errors(found: dict[str, Any]) -> Figures:
    return {"errors": float(found["errors"])}
