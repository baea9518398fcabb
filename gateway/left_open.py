"""Rows that nobody is going to settle, since a write failed: closed once that works again.

An answer whose settlement failed was not acknowledged, so it isn't billed. No list of such rows is
kept: they are what this process has open beside the requests that run. Closing them also finds out
whether the store can be written to again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import structlog

from gateway.ledger import Ledger
from gateway.store.errors import StoreUnavailable

log = structlog.get_logger()

FIRST_S = 0.5
LONGEST_S = 10.0


async def follow(ledger: Ledger, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Close them whenever there may be some, until cancelled."""
    while True:
        await ledger.in_doubt.wait()
        await _until_none_are_left(ledger, pause)


def pauses() -> Iterator[float]:
    """Seconds from one try to the next."""
    seconds = FIRST_S
    while True:
        yield seconds
        seconds = min(2 * seconds, LONGEST_S)


async def _until_none_are_left(ledger: Ledger, pause: Callable[[float], Awaitable[None]]) -> None:
    """Until one try went well, and no write failed in the pause after it."""
    closed, fault, seconds = 0, None, pauses()
    while ledger.in_doubt.is_set():
        if fault is None and ledger.fault is not None:
            fault = ledger.fault
            log.error("ledger_not_written", fault=str(fault), then="answers end in 503, unbilled")
        ledger.in_doubt.clear()
        try:
            closed += await ledger.close_left_open()
        except StoreUnavailable:
            ledger.in_doubt.set()
        await pause(next(seconds))
    ledger.fault = None
    if fault is not None:
        log.warning("ledger_written_again", closed_unbilled=closed)
    elif closed:
        log.warning("orphans_reaped", records=closed)
