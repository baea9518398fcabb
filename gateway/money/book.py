"""The prices in force, in memory: asked for every request, so that none waits for the store.

A deployment's prices are written to the store before its first request is admitted. Should that
fail, or a tenant with a contract be newer than the deployment, the first request that needs to know
has it done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import structlog

from gateway.catalog.catalog import Deployment
from gateway.clock import Clock
from gateway.door import Door
from gateway.errors import StoreDown
from gateway.ids import new_id
from gateway.money.price_store import Synced, Timelines, sync
from gateway.money.versions import PriceVersion, Wanted
from gateway.money.wanted import Key
from gateway.prices import Priced, Terms
from gateway.store.errors import StoreUnavailable
from gateway.store.principal import Principal
from gateway.store.writer import Writer

log = structlog.get_logger()


class PriceBook:
    """One deployment's prices. Belongs to one event loop."""

    def __init__(
        self, wanted: Mapping[Key, Sequence[Wanted]], writer: Writer, clock: Clock, door: Door
    ) -> None:
        self._wanted = wanted
        self._writer = writer
        self._door = door
        self._clock = clock
        self._timelines: Timelines = {}
        self._tenants: Mapping[str, str] = {}
        self._told: set[tuple[str, str]] = set()
        self.is_synced = False

    async def sync(self) -> None:
        """Have the store know these prices, and know what it has. Raises StoreUnavailable.

        Waits while the store is being restored.
        """
        name = new_id("sync")
        await self._door.enter(name)
        try:
            job = partial(sync, wanted=self._wanted, now_us=self._clock.now_us())
            self._take(await self._writer.run(job))
        finally:
            self._door.leave(name)

    def forget(self) -> None:
        """The store has other content now: ask it again before the next request."""
        self.is_synced = False

    async def terms(self, principal: Principal, deployment: Deployment) -> Terms:
        """What a request is charged by that is admitted now. Raises StoreDown."""
        if not self._knows(principal, deployment):
            try:
                await self.sync()
            except StoreUnavailable:
                raise StoreDown("prices can't be looked up just now; try again") from None
        now = self._clock.now_us()
        listed = self._in_force(deployment.id, None, now) or Priced(deployment.prices)
        if (deployment.id, principal.tenant_name) not in self._wanted:
            return Terms(listed, listed)
        agreed = self._in_force(deployment.id, principal.tenant_id, now)
        return Terms(agreed or listed, listed)

    def history(self, principal: Principal, deployment: Deployment) -> list[PriceVersion]:
        """All versions for everybody and for this tenant, the one that begins last first."""
        keys = ((deployment.id, None), (deployment.id, principal.tenant_id))
        every = (version for key in keys for version in self._timelines.get(key, ()))
        return sorted(every, key=lambda one: (one.effective_from, one.created_at), reverse=True)

    def _knows(self, principal: Principal, deployment: Deployment) -> bool:
        if not self.is_synced:
            return False
        if (deployment.id, principal.tenant_name) not in self._wanted:
            return True
        return self._tenants.get(principal.tenant_name) == principal.tenant_id

    def _in_force(self, model_id: str, tenant_id: str | None, us: int) -> Priced | None:
        timeline = self._timelines.get((model_id, tenant_id))
        return timeline.priced_at(us) if timeline is not None else None

    def _take(self, found: Synced) -> None:
        self._timelines, self._tenants = found.timelines, found.tenants
        self.is_synced = True
        for version in found.added:
            log.info(
                "price_version_added",
                model=version.model_id,
                tenant=version.tenant_id,
                version=version.id,
                reason=version.reason,
            )
        for fault in found.faults:
            if fault not in self._told:
                log.error("price_not_in_force", path=fault[0], fault=fault[1])
                self._told.add(fault)


async def prepare(book: PriceBook) -> None:
    """Sync it, if the store can be written to now; else the first request has it done."""
    try:
        await book.sync()
    except StoreUnavailable as fault:
        log.warning("prices_not_written", fault=str(fault))
