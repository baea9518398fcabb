"""When each key was last used, and from where: written beside the requests, once a minute a key.

It's for people who want to know which keys can go: a lost line of it harms nobody.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.types import Scope

from gateway.clock import Clock
from gateway.door import Door
from gateway.identity.networks import Proxies
from gateway.ids import new_id
from gateway.store.errors import StoreUnavailable
from gateway.store.sql import Connection
from gateway.store.writer import Writer

GAP_US = 60_000_000
FLUSH_S = 2.0
MAX_KNOWN = 100_000  # keys


class LastUsed:
    """Notes in memory, and writes. Belongs to one event loop."""

    def __init__(self, writer: Writer, door: Door, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock
        self._door = door
        self._noted: dict[str, int] = {}  # by key: when, in microseconds UTC
        self._waiting: dict[str, tuple[int, str | None]] = {}

    def note(self, key_id: str, scope: Scope, proxies: Proxies) -> None:
        """A key is used. From where is only looked at if that is to be written."""
        now_us = self._clock.now_us()
        before = self._noted.get(key_id)
        if before is not None and 0 <= now_us - before < GAP_US:
            return
        if len(self._noted) >= MAX_KNOWN:
            self._noted.clear()
        self._noted[key_id] = now_us
        address = proxies.caller(scope)
        self._waiting[key_id] = now_us, None if address is None else str(address)

    async def flush(self) -> None:
        """Write what has gathered; durable when this returns. Raises StoreUnavailable."""
        gathered, self._waiting = self._waiting, {}
        if not gathered:
            return
        name = new_id("lu")
        await self._door.enter(name)
        try:
            await self._writer.run(lambda db: write(db, gathered))
        finally:
            self._door.leave(name)

    async def follow(self) -> None:
        """Write now and then, until cancelled. What can't be written is dropped."""
        while True:
            await asyncio.sleep(FLUSH_S)
            with suppress(StoreUnavailable):
                await self.flush()


def write(db: Connection, gathered: dict[str, tuple[int, str | None]]) -> None:
    """Write down when keys were used, and from where: a piece of one transaction."""
    for key_id, (at, address) in gathered.items():
        db.execute(_UPSERT, {"key_id": key_id, "at": at, "address": address, "gap": GAP_US})


# Another worker may have written less than a minute ago; a restore may have taken the key away.
_UPSERT = """
INSERT INTO api_key_use (key_id, last_used_at, last_used_from)
SELECT id, :at, :address FROM api_key WHERE id = :key_id
ON CONFLICT (key_id) DO UPDATE SET
  last_used_at = excluded.last_used_at, last_used_from = excluded.last_used_from
WHERE excluded.last_used_at >= api_key_use.last_used_at + :gap
"""
