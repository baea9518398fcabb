"""Who may call, and within which limits: live keys and tenants in memory, and the rules that were
set, kept fresh by looking at a version number.

Looking costs one row four times a second; the keys are read again only when the number moved. A
gateway that couldn't look for 5 s is blind: it must refuse, for a key may have been revoked.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

import anyio

from gateway.clock import Clock
from gateway.store.address import Database
from gateway.store.callers import Callers, read_callers
from gateway.store.connection import directory_version
from gateway.store.errors import StoreUnavailable
from gateway.store.limit_rules import NO_RULES, StoredRules, read_rules
from gateway.store.principal import Principal
from gateway.store.reader import read_in_thread
from gateway.store.sql import Connection

POLL_INTERVAL_S = 0.25
BLIND_AFTER_US = 5_000_000


Version = tuple[int, int]
Found = tuple[Version, Callers, StoredRules]


class Stop(Protocol):
    """An event of asyncio or anyio."""

    def is_set(self) -> bool:
        """Whether it happened."""

    async def wait(self) -> object:
        """Return once it happened."""


class KeyDirectory:
    """Answers from memory. Empty, and blind, until the first refresh."""

    def __init__(self, database: Database, clock: Clock, *, include_demo: bool = False) -> None:
        self._database = database
        self._clock = clock
        self._include_demo = include_demo
        self._version: Version = (-1, -1)
        self.limit_rules: StoredRules = NO_RULES  # another object whenever they may have changed
        self._callers = Callers()
        self._seen_at_us: int | None = None
        self._looking = asyncio.Lock()  # an older look must not end after a newer one
        self._next: asyncio.Future[bool] | None = (
            None  # somebody waits for a look that hasn't begun
        )

    def principal(self, digest: bytes) -> Principal | None:
        """Whose live key has this digest."""
        return self._callers.by_digest.get(digest)

    def by_secret(self, name: bytes) -> Principal | None:
        """Whose live key has the secret of this name, `Principal.secret`."""
        return self._callers.by_secret.get(name)

    def tenant(self, name: str) -> Principal | None:
        """The live tenant of this name, by none of its keys."""
        return self._callers.by_tenant.get(name)

    def now(self, principal: Principal) -> Principal | None:
        """A principal of this directory's as it is now: the same object while nothing changes."""
        if principal.key_id is None:
            return self._callers.by_tenant.get(principal.tenant_name)
        return self._callers.by_secret.get(principal.secret)

    def is_blind(self, now_us: int) -> bool:
        """Whether what is in memory is too old to be trusted; microseconds UTC."""
        return self._seen_at_us is None or now_us - self._seen_at_us > BLIND_AFTER_US

    async def refresh_if_changed(self) -> bool:
        """Look once; whether anything had changed. Raises StoreUnavailable."""
        async with self._looking:
            waited_for, self._next = self._next, None
            went_well = False
            try:
                changed = await self._look()
                went_well = True
            finally:
                if waited_for is not None and not waited_for.done():
                    waited_for.set_result(went_well)
            return changed

    def next_look(self) -> asyncio.Future[bool]:
        """Done once a look has ended that hasn't begun yet, a regular one or not: if it went well.

        Others wait for it too: don't cancel it.
        """
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        return self._next

    async def _look(self) -> bool:
        looked_at_us = self._clock.now_us()
        found = await read_in_thread(self._database, self._read_if_changed)
        self._seen_at_us = looked_at_us
        if found is None:
            return False
        self._version, self._callers, self.limit_rules = found
        return True

    async def watch(self, stop: Stop, interval_s: float = POLL_INTERVAL_S) -> None:
        """Look again and again until `stop` is set. A look that fails only makes us blinder."""
        while not stop.is_set():
            with suppress(StoreUnavailable):  # is_blind tells, once it matters
                await self.refresh_if_changed()
            with anyio.move_on_after(interval_s):
                await stop.wait()

    def _read_if_changed(self, db: Connection) -> Found | None:
        version = directory_version(db)
        if version == self._version:
            return None
        callers = read_callers(db, include_demo=self._include_demo)
        return version, callers, read_rules(db)
