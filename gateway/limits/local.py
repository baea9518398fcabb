"""Counts in this process, by its own clock that never goes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from gateway.limits.limit import Limit, Take, changed
from gateway.limits.limiter import LEASE_S, Held, Verdict

SWEEP_LEAST = 1024


def monotonic_us() -> int:
    """Microseconds since some moment."""
    return time.monotonic_ns() // 1000


class LocalLimiter:
    """Nothing is awaited within a call, so each is one step."""

    is_together = True
    waits = False

    def __init__(
        self, now_us: Callable[[], int] = monotonic_us, lease_us: int = int(LEASE_S * 1e6)
    ) -> None:
        self._now_us = now_us
        self._lease_us = lease_us
        self._full_at: dict[str, int] = {}  # when a bucket will be full again
        self._leases: dict[str, dict[str, int]] = {}  # until when, soonest first
        self._sweep_at = SWEEP_LEAST

    async def reserve(self, grant: str, takes: Sequence[Take]) -> Verdict:
        """As Limiter has it."""
        now = self._now_us()
        levels = [self._level(take.limit, now) for take in takes]
        after = [level + take.cost for take, level in zip(takes, levels, strict=True)]
        for take, level in zip(takes, after, strict=True):
            if level > take.limit.most:
                return Verdict(False, takes, tuple(levels))
        for take, level in zip(takes, after, strict=True):
            limit = take.limit
            if limit.is_place:
                self._hold(limit.key, grant, now)
            else:
                self._full_at[limit.key] = now + level
        if len(self._full_at) > self._sweep_at:
            self._sweep(now)
        return Verdict(True, takes, tuple(after))

    async def look(self, takes: Sequence[Take]) -> Verdict:
        """As Limiter has it."""
        now = self._now_us()
        return Verdict(False, takes, tuple(self._level(take.limit, now) for take in takes))

    async def settle(self, grant: str, takes: Sequence[Take], used: Sequence[int]) -> None:
        """As Limiter has it."""
        now = self._now_us()
        for take, amount in zip(takes, used, strict=True):
            if take.limit.is_place:
                self._free(take.limit.key, grant)
            elif level := changed(self._level(take.limit, now), take.change(amount)):
                self._full_at[take.limit.key] = now + level
            else:
                self._full_at.pop(take.limit.key, None)

    async def renew(self, held: Iterable[Held]) -> None:
        """As Limiter has it."""
        now = self._now_us()
        for place in held:
            self._hold(place.take.limit.key, place.grant, now)

    async def beat(self) -> bool:
        """As Limiter has it: nothing is forgotten here."""
        return False

    def __len__(self) -> int:
        """Buckets that aren't full, and limits under which something runs."""
        self._sweep(self._now_us())
        return len(self._full_at) + len(self._leases)

    def _level(self, limit: Limit, now: int) -> int:
        if not limit.is_place:
            full_at = self._full_at.get(limit.key, now)
            return full_at - now if full_at > now else 0
        leases = self._leases.get(limit.key)
        if leases is None:
            return 0
        self._expire(limit.key, leases, now)
        return len(leases)

    def _hold(self, key: str, grant: str, now: int) -> None:
        leases = self._leases.setdefault(key, {})
        leases.pop(grant, None)  # all leases are as long, so the last is the one that ends last
        leases[grant] = now + self._lease_us

    def _free(self, key: str, grant: str) -> None:
        leases = self._leases.get(key)
        if leases is not None:
            leases.pop(grant, None)
            if not leases:
                del self._leases[key]

    def _expire(self, key: str, leases: dict[str, int], now: int) -> None:
        while leases:
            grant, until = next(iter(leases.items()))
            if until > now:
                return
            del leases[grant]
        del self._leases[key]

    def _sweep(self, now: int) -> None:
        """Forget the buckets that are full: what there is no entry of is full, too."""
        for key in [key for key, full_at in self._full_at.items() if full_at <= now]:
            del self._full_at[key]
        for key, leases in list(self._leases.items()):
            self._expire(key, leases, now)
        self._sweep_at = max(SWEEP_LEAST, 2 * len(self._full_at))
