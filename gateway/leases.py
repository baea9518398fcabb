"""Which gateways of a PostgreSQL store live: each renews a lease there, every few seconds.

Nobody's clock is compared with another's. A gateway is dead to who has seen its lease unchanged for
`LEASE_S`, looking all the while: who couldn't look, as while the server was down, begins anew, for
then the others couldn't renew theirs. On one machine locks tell at once (`boots`).

A gateway that stood still so long, stopped or cut off, may have lost its open records: what settles
them then is told so (`Ledger.settle` is False), and no end of the answer goes out. It opens no
new ones before it has renewed its lease.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from gateway.boots import Boots
from gateway.clock import Clock
from gateway.store.errors import StoreUnavailable
from gateway.store.sql import Connection
from gateway.store.writer import Writer

log = structlog.get_logger()

RENEW_EVERY_S = 2.0
LEASE_S = 15.0
ASSURED_S = 12.0  # since a renewal began: whoever saw it watches for LEASE_S from then on
_GAP_S = 6.0  # between two looks, after which what was seen before says nothing


def uptime_s() -> float:
    """Goes on while the process is stopped and, on Linux, while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Seen:
    """When each lease was seen to change. Pure: the time comes with each look."""

    def __init__(self) -> None:
        self._leases: dict[str, tuple[int, float]] = {}  # its value, and since when
        self._looked_at = 0.0

    def look(self, leases: dict[str, int], now: float) -> None:
        """Take note of what there is now; seconds."""
        before = self._leases if now - self._looked_at <= _GAP_S else {}
        self._leases = {
            boot_id: before[boot_id] if before.get(boot_id, (None,))[0] == value else (value, now)
            for boot_id, value in leases.items()
        }
        self._looked_at = now

    def unchanged(self, boot_id: str, value: int) -> bool:
        """Whether a lease is as it was `LEASE_S` before the last look, and ever since."""
        found, since = self._leases.get(boot_id, (None, 0.0))
        return found == value and self._looked_at - since >= LEASE_S


class Leases:
    """This gateway's lease, and what it sees of the others'."""

    def __init__(
        self,
        writer: Writer,
        boots: Boots,
        boot_id: str,
        host: str,
        clock: Clock,
        now: Callable[[], float] = uptime_s,
    ) -> None:
        self._writer = writer
        self._boots = boots
        self._boot_id = boot_id
        self._values = {"boot_id": boot_id, "host": host}
        self._clock = clock
        self._now = now
        self._renewed_at: float | None = None
        self._seen = Seen()
        self._living: frozenset[str] = frozenset()
        self._may_be_dead = False

    @property
    def is_assured(self) -> bool:
        """Whether no other can have given this gateway up."""
        return self._renewed_at is not None and self._now() - self._renewed_at < ASSURED_S

    async def renew(self) -> None:
        """Renew the lease, or take it again if it was given up; see how the others do.

        Raises StoreUnavailable.
        """
        began, now_us = self._now(), self._clock.now_us()
        values = self._values | {"now": now_us, "lease_until": now_us + int(LEASE_S * 1e6)}

        def job(db: Connection) -> dict[str, int]:
            db.execute(_RENEW, values)
            return dict(db.execute(_LEASES).fetchall())

        leases = await self._writer.run(job)
        self._seen.look(leases, self._now())
        self._renewed_at = began
        self._may_be_dead = any(self._is_dead(*lease) for lease in leases.items())

    async def leave(self) -> None:
        """Give the lease up: nothing is open any more."""
        with suppress(StoreUnavailable):  # others find out by themselves
            await self._writer.run(lambda db: db.execute(_END, self._values).rowcount)

    async def watch(self, reap: Callable[[], Awaitable[None]]) -> None:
        """Renew, and call `reap` when another seems dead, until cancelled."""
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            with suppress(StoreUnavailable, OSError):  # the next turn tries again
                await self.renew()
                if self._may_be_dead:
                    await reap()

    def end_the_dead(self, db: Connection) -> None:
        """Remove the leases of the dead, and learn who lives; in the transaction of the reaping."""
        leases = dict(db.execute(_LEASES).fetchall())
        for boot_id, value in list(leases.items()):
            if self._is_dead(boot_id, value):
                db.execute(_END, {"boot_id": boot_id})
                del leases[boot_id]
        self._living = frozenset(leases)

    def is_alive(self, boot_id: str) -> bool:
        """As `end_the_dead` has found."""
        return boot_id in self._living

    def _is_dead(self, boot_id: str, value: int) -> bool:
        if boot_id == self._boot_id:
            return False
        return self._seen.unchanged(boot_id, value) or self._boots.has_died(boot_id)


_RENEW = """
INSERT INTO gateway_boot (boot_id, host, started_at, lease_until)
VALUES (:boot_id, :host, :now, :lease_until)
ON CONFLICT (boot_id) DO UPDATE SET lease_until = :lease_until
"""

_LEASES = "SELECT boot_id, lease_until FROM gateway_boot"

_END = "DELETE FROM gateway_boot WHERE boot_id = :boot_id"
