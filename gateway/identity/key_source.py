"""An issuer's keys, as new as they have to be: who needs them may wait for a look, nobody loads it.

A key that was taken out of the set stops working once the set is `refresh_s` old. While nobody
answers, the keys that are known go on for `stale_s`. Looks are shared, and `RETRY_US` apart.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable

import structlog

from gateway.clock import Clock
from gateway.identity.jwks import BadKeySet, KeySet, keys_of

log = structlog.get_logger()

RETRY_US = 10_000_000
US = 1_000_000

Fetch = Callable[[], Awaitable[bytes]]


class KeysUnavailable(Exception):
    """The issuer's keys aren't known, or are too old to be believed."""


class FetchFailed(Exception):
    """The key set can't be had; the message says why."""


class KeySource:
    """The keys of one issuer. Belongs to one event loop."""

    def __init__(
        self, issuer: str, fetch: Fetch, clock: Clock, refresh_s: float, stale_s: float
    ) -> None:
        self._issuer = issuer
        self._fetch = fetch
        self._clock = clock
        self._refresh_us = int(refresh_s * US)
        self._stale_us = int(stale_s * US)
        self._keys: KeySet | None = None
        self._digest = b""
        self._seen_at: int | None = None  # when the keys were known to be these
        self._tried_at: int | None = None
        self._is_failing = False
        self._look: asyncio.Task[None] | None = None

    async def keys(self) -> KeySet:
        """The keys as they are now, or were lately; the same object while they are the same.

        Raises KeysUnavailable.
        """
        now_us = self._clock.now_us()
        if not self._is_within(self._refresh_us, now_us):
            look = self._begin(now_us)
            if look is not None and not (self._is_failing and self._keys):
                await asyncio.shield(look)  # it is others' too
        return self._known()

    async def newer(self) -> KeySet:
        """After a look, if it is time for one: for a key that isn't known. As `keys`."""
        look = self._begin(self._clock.now_us())
        if look is not None:
            await asyncio.shield(look)
        return self._known()

    def _known(self) -> KeySet:
        if self._keys is None or not self._is_within(self._stale_us, self._clock.now_us()):
            raise KeysUnavailable(f"The keys of {self._issuer} can't be had.")
        return self._keys

    def _is_within(self, age_us: int, now_us: int) -> bool:
        return self._seen_at is not None and 0 <= now_us - self._seen_at < age_us

    def _begin(self, now_us: int) -> asyncio.Task[None] | None:
        """The look that is under way, or a new one; None if the last was just now."""
        if self._look is not None and not self._look.done():
            return self._look
        if self._tried_at is not None and 0 <= now_us - self._tried_at < RETRY_US:
            return None
        self._tried_at = now_us
        self._look = asyncio.create_task(self._refresh(now_us))
        return self._look

    async def _refresh(self, now_us: int) -> None:
        try:
            document = await self._fetch()
            digest = hashlib.sha256(document).digest()
            if digest != self._digest:
                self._keys = keys_of(document)
                self._digest = digest
        except (FetchFailed, BadKeySet) as fault:
            if not self._is_failing:
                log.warning("issuer_keys_not_read", issuer=self._issuer, reason=str(fault))
            self._is_failing = True
            return
        if self._is_failing:
            log.info("issuer_keys_read_again", issuer=self._issuer)
        self._is_failing = False
        self._seen_at = now_us
