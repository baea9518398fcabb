"""All that is tried on a server, one after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from gateway.conformance.answers import characters, stops, usage
from gateway.conformance.backend import Backend, Target, Wrong
from gateway.conformance.caches import caches
from gateway.conformance.cancels import cancels
from gateway.conformance.refusals import refusals
from gateway.conformance.token_ids import token_ids
from gateway.conformance.verdict import Line, told
from gateway.relay.sse import BadFrame
from gateway.relay.transport import Broken, ConnectFailed

TRIALS: dict[str, Callable[[Backend], Awaitable[list[Line]]]] = {
    "usage": usage,
    "characters": characters,
    "stop texts": stops,
    "refusals": refusals,
    "caches": caches,
    "token ids": token_ids,
    "cancelling": cancels,
}
FAULTS = (Wrong, BadFrame, Broken, ConnectFailed, TimeoutError)


async def trials(target: Target) -> AsyncIterator[Line]:
    """The lines of the report as they are known. Raises Unusable."""
    backend = Backend(target)
    try:
        await backend.discover()
        for name, trial in TRIALS.items():
            try:
                lines = await trial(backend)
            except FAULTS as fault:
                lines = [told(name, holds=False, seen=str(fault) or type(fault).__name__)]
            for line in lines:
                yield line
    finally:
        await backend.aclose()
