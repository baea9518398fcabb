"""Whether a request whose caller leaves is given up, wherever it stands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from urllib.parse import urlsplit

from gateway.conformance.backend import Backend, Wrong
from gateway.conformance.gauges import Gauge, gauge_of
from gateway.conformance.verdict import Line, told, unknown

IN_TIME_S = 0.5
PATIENCE_S = 10.0  # so long it is watched for giving up after all
LOOK_S = 0.02
TOKENS = 600  # an answer that lasts
BEFORE_S = 60.0  # for what was sent before to end, left or not
CROWD = 4  # requests that another one stands beside, or behind
PROMPT = "Write a very long story about the sea."


class TooQuick(Exception):
    """The request had ended before its caller could leave."""


async def cancels(backend: Backend) -> list[Line]:
    """Six phases. Each is a caller that leaves, and how long the server goes on after that."""
    gauge = await gauge_of(backend)
    phases: dict[str, Callable[[Backend, Gauge], Awaitable[float]]] = {
        "connecting": _connecting,
        "queued": _queued,
        "sent, no headers": _sent,
        "headers, no body": _headers,
        "in mid-stream": _midstream,
        "unstreamed": _unstreamed,
    }
    if gauge is None:
        return [
            unknown(f"cancelled {phase}", "it tells nobody what it has in hand") for phase in phases
        ]
    lines = []
    for phase, run in phases.items():
        await _until(gauge, 0, BEFORE_S)  # what ran on from the phase before
        lines.append(await _line(f"cancelled {phase}", run(backend, gauge)))
    return lines


async def _line(name: str, run: Awaitable[float]) -> Line:
    try:
        seconds = await run
    except TooQuick:
        return unknown(name, "it answers faster than one can leave")
    if seconds >= PATIENCE_S:
        return told(name, holds=False, seen=f"it goes on for more than {PATIENCE_S:g} s")
    return told(name, holds=seconds <= IN_TIME_S, seen=f"given up after {seconds:.2f} s")


async def _connecting(backend: Backend, gauge: Gauge) -> float:
    url = urlsplit(backend.url)
    port = url.port or {"http": 80, "https": 443}[url.scheme]
    _, writer = await asyncio.open_connection(url.hostname, port)
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return await _until(gauge, 0)


async def _queued(backend: Backend, gauge: Gauge) -> float:
    """Beside others: on a server that is full it waits, on another one it runs."""
    crowd = [asyncio.ensure_future(_read(backend)) for _ in range(CROWD)]
    try:
        await _reaches(gauge, CROWD)
        last = asyncio.ensure_future(_read(backend))
        with suppress(TooQuick):  # one that is waiting isn't told by each server
            await _reaches(gauge, CROWD + 1, 1.0)
        await _leave(last)
        return await _until(gauge, CROWD)
    finally:
        for task in crowd:
            task.cancel()
        await asyncio.wait(crowd)
        await _until(gauge, 0)


async def _sent(backend: Backend, gauge: Gauge) -> float:
    task = asyncio.ensure_future(_read(backend, stream=False))
    await _reaches(gauge, 1)
    await _leave(task)
    return await _until(gauge, 0)


async def _headers(backend: Backend, gauge: Gauge) -> float:
    return await _after_events(backend, gauge, 0)


async def _midstream(backend: Backend, gauge: Gauge) -> float:
    return await _after_events(backend, gauge, 3)


async def _unstreamed(backend: Backend, gauge: Gauge) -> float:
    task = asyncio.ensure_future(_read(backend, stream=False))
    await _reaches(gauge, 1)
    await asyncio.sleep(0.3)  # it is well on its way
    await _leave(task)
    return await _until(gauge, 0)


async def _after_events(backend: Backend, gauge: Gauge, count: int) -> float:
    body = backend.body(PROMPT, max_tokens=TOKENS, stream=True)
    async with backend.open("POST", backend.path, body) as reply:
        seen = 0
        if reply.status != 200:
            raise Wrong(f"it answers {reply.status} to a stream")
        while seen < count:
            chunk = await reply.chunk() or b"[DONE]"
            seen += chunk.count(b"\n\n")
            if b"[DONE]" in chunk:
                raise TooQuick
    return await _until(gauge, 0)


async def _read(backend: Backend, *, stream: bool = True) -> None:
    body = backend.body(PROMPT, max_tokens=TOKENS, stream=stream)
    async with backend.open("POST", backend.path, body) as reply:
        while await reply.chunk() is not None:
            pass


async def _leave(task: asyncio.Task[None]) -> None:
    if task.done():
        raise TooQuick
    task.cancel()
    await asyncio.wait([task])


async def _reaches(gauge: Gauge, count: int, within_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + within_s
    while (await gauge() or 0) < count:
        if time.monotonic() > end:
            raise TooQuick
        await asyncio.sleep(LOOK_S)


async def _until(gauge: Gauge, count: int, patience_s: float | None = None) -> float:
    """Seconds until there are no more than so many; `patience_s` if there always are."""
    began = time.monotonic()
    patience_s = PATIENCE_S if patience_s is None else patience_s
    while time.monotonic() - began < patience_s:
        found = await gauge()
        if found is not None and found <= count:
            return time.monotonic() - began
        await asyncio.sleep(LOOK_S)
    return patience_s
