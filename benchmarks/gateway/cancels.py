"""Whether an engine hears of a client that leaves: three moments, streamed and not."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from benchmarks.gateway.bodies import body
from benchmarks.gateway.programs import Engine
from benchmarks.gateway.ways import Way

PATIENCE_S = 3.0
SETTLE_S = 0.3  # for a request to be where it is to be left
# the engine's way to answer, and what the client has of the answer when it leaves
MOMENTS = {"at once": "silent", "before the first byte": "silent", "in the middle": "half"}


def cancels(way: Way, engine: Engine) -> dict[str, float | None]:
    """Seconds until the engine knew, for each phase; None: it wasn't told in time."""
    return {
        f"{'streamed' if streamed else 'whole'}, {moment}": _left(
            way, engine, kind, moment, streamed=streamed
        )
        for streamed in (True, False)
        for moment, kind in MOMENTS.items()
    }


def _left(way: Way, engine: Engine, kind: str, moment: str, *, streamed: bool) -> float | None:
    parts = urlsplit(way.target.url)
    sock = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 80))
    before = engine.stats()
    with sock:
        sock.sendall(way.target.request(body(way.prefix + kind, chunks=64 if streamed else 0)))
        if moment != "at once":
            _until(lambda: engine.stats()["requests"] > before["requests"])
            time.sleep(SETTLE_S)
    # of one that left at once, the engine may hear only after it has gone
    after_s = SETTLE_S if moment == "at once" else 0.0
    return _until(lambda: engine.stats()["open"] <= before["open"], after_s)


def _until(condition: Callable[[], bool], after_s: float = 0.0) -> float | None:
    began = time.monotonic()
    time.sleep(after_s)
    while not condition():
        if time.monotonic() - began > PATIENCE_S:
            return None
        time.sleep(0.01)
    return time.monotonic() - began
