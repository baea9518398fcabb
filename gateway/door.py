"""The door to the ledger: shut while a restore replaces the store's content.

Requests wait at it, for so long and no longer; those inside go on, and leave when they are settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import structlog

from gateway.store.errors import StoreUnavailable
from gateway.store.hold import POLL_S, Use, is_wanted

log = structlog.get_logger()


class Door:
    """Lets requests in, or has them wait `patience_s` at most. Belongs to one event loop.

    `patience_s` may be changed: whoever waits already has what it was when they came.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._inside: set[str] = set()
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    async def enter(self, name: str) -> None:
        """Go in, once it is open. Raises StoreUnavailable after `patience_s`."""
        if not self._is_open.is_set():
            await self._wait()
        self._inside.add(name)
        self._is_empty.clear()

    def leave(self, name: str) -> None:
        """Go out; a second time does nothing."""
        self._inside.discard(name)
        if not self._inside:
            self._is_empty.set()

    def inside(self) -> frozenset[str]:
        """Who is inside now."""
        return frozenset(self._inside)

    def shut(self) -> None:
        """Let nobody in."""
        self._is_open.clear()

    def open(self) -> None:
        """Let in those who wait, and whoever comes."""
        self._is_open.set()

    async def emptied(self) -> None:
        """Returns once nobody is inside."""
        await self._is_empty.wait()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self.patience_s):
                while not self._is_open.is_set():  # it may have been shut again
                    await self._is_open.wait()
        except TimeoutError:
            raise StoreUnavailable("The store is being restored.") from None


async def keep(
    door: Door,
    use: Use,
    database: Path,
    flush: Callable[[], Awaitable[object]],
    look_again: Callable[[], Awaitable[object]],
) -> None:
    """Let go of the store whenever a restore wants it, until cancelled.

    `flush` returns once all that was written is in the store, `look_again` once its new content is
    known.
    """
    is_told = False
    while True:
        await asyncio.sleep(POLL_S)
        try:
            await take(use)  # it has been, unless a fault came between
            wanted, is_told = is_wanted(database), False
            if not wanted:
                continue
            door.shut()
            log.info("store_wanted", by="a restore; requests wait")
            if await _lend(door, use, database, flush):
                with suppress(StoreUnavailable):  # requests will meet it, and tell
                    await look_again()
                await take(use)
            log.info("store_back")
        except OSError as fault:  # no descriptor is free, say, or the disk is read-only
            if not is_told:
                log.warning("store_marks_unreadable", fault=str(fault))
            is_told = True
        finally:
            if use.is_held:
                door.open()


async def take(use: Use) -> None:
    """Have a share in the use of the store, once no restore has it."""
    while not use.take():
        await asyncio.sleep(POLL_S)


async def _lend(
    door: Door, use: Use, database: Path, flush: Callable[[], Awaitable[object]]
) -> bool:
    """Returns when the store isn't wanted any more; whether it was let go of."""
    while is_wanted(database):
        try:
            async with asyncio.timeout(POLL_S):
                await door.emptied()
        except TimeoutError:
            continue  # it may have given up
        with suppress(StoreUnavailable):
            await flush()
        use.let_go()
        while is_wanted(database):
            await asyncio.sleep(POLL_S)
        return True
    return False
