"""The books kept beside the requests: records sealed, checkpoints signed. Not in their way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.clock import Clock
from gateway.door import Door
from gateway.ids import new_id
from gateway.money.sealing import BATCH, Sealer
from gateway.money.signing import checkpoint, is_due
from gateway.store.errors import StoreUnavailable
from gateway.store.sql import Connection
from gateway.store.writer import Job, T, Writer

log = structlog.get_logger()

PAUSE_S = 1.0


class Keeper:
    """Writes between the requests' own jobs; waits at the door while the store is restored."""

    def __init__(self, writer: Writer, clock: Clock, door: Door, key: Ed25519PrivateKey) -> None:
        self._writer = writer
        self._clock = clock
        self._door = door
        self._key = key
        self._sealer = Sealer()

    async def follow(self, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Keep them until cancelled."""
        is_told = False
        while True:
            try:
                await self.keep()
                is_told = False
            except StoreUnavailable as fault:
                if not is_told:
                    log.warning("records_not_sealed", fault=str(fault))
                is_told = True
            await pause(PAUSE_S)

    async def keep(self) -> None:
        """Seal all that is closed; sign, if it is time. Raises StoreUnavailable."""
        try:
            while await self._run(self._sealer.seal) == BATCH:
                pass
        except BaseException:
            self._sealer.forget()
            raise
        await self._run(partial(_sign_if_due, key=self._key, now_us=self._clock.now_us()))

    async def _run(self, job: Job[T]) -> T:
        name = new_id("keep")
        await self._door.enter(name)
        try:
            return await self._writer.run(job)
        finally:
            self._door.leave(name)


def _sign_if_due(db: Connection, key: Ed25519PrivateKey, now_us: int) -> None:
    if is_due(db, now_us):
        checkpoint(db, key, now_us)
