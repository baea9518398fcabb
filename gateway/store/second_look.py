"""A second look for a key that isn't in memory: one that was just made works at once.

Whoever makes up well-formed keys must not be able to load the store. So requests share looks, looks
are rationed, and a key that wasn't there is remembered: keys are random, so none is made later.
Whoever gets no look of its own waits for the next regular one, so a key that was just made works
however many strangers ask; it takes no place of a completion meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from gateway.clock import Clock
from gateway.store.directory import KeyDirectory
from gateway.store.errors import StoreUnavailable
from gateway.store.principal import Principal

BURST = 10.0
PER_S = 5.0
REMEMBERED = 1024
PATIENCE_S = 1.0


class Ration:
    """So many at once, and then so many a second: a token bucket."""

    def __init__(self, clock: Clock, burst: float = BURST, per_s: float = PER_S) -> None:
        self._clock = clock
        self._burst = burst
        self._per_s = per_s
        self._left = burst
        self._at_us = clock.now_us()

    def take(self) -> bool:
        """Take one; False if none is left."""
        now_us = self._clock.now_us()
        gained = max(0, now_us - self._at_us) / 1e6 * self._per_s  # a clock may be set back
        self._left, self._at_us = min(self._burst, self._left + gained), now_us
        if self._left < 1:
            return False
        self._left -= 1
        return True


class SecondLook:
    """Looks for keys in the store, now and then. Belongs to one event loop."""

    def __init__(self, directory: KeyDirectory, clock: Clock) -> None:
        self._directory = directory
        self._ration = Ration(clock)
        self._missing: OrderedDict[bytes, None] = OrderedDict()
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[bool] | None = None  # it hasn't begun: who comes may share it

    async def principal(self, digest: bytes) -> Principal | None:
        """Whose live key has this digest, if that is found out. Raises StoreUnavailable."""
        if digest in self._missing:
            self._missing.move_to_end(digest)
            return None
        await self.look()
        found = self._directory.principal(digest)
        if found is None:
            self._remember(digest)
        return found

    async def look(self) -> None:
        """Wait for a look that begins from now on, shared. Raises StoreUnavailable."""
        if self._next is None and self._ration.take():
            self._next = asyncio.create_task(self._look())
        await self._wait_for(self._next or self._directory.next_look())

    async def _wait_for(self, look: asyncio.Future[bool]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                went_well = await asyncio.shield(look)  # it is others' too
        except TimeoutError:
            went_well = False
        if not went_well:
            raise StoreUnavailable("The keys can't be looked up.")

    async def _look(self) -> bool:
        async with self._turn:
            self._next = None  # who comes while we look may have a key that is newer than that
            try:
                await self._directory.refresh_if_changed()
            except StoreUnavailable:
                return False
            return True

    def _remember(self, digest: bytes) -> None:
        self._missing[digest] = None
        if len(self._missing) > REMEMBERED:
            self._missing.popitem(last=False)
