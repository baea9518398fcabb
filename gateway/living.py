"""A ledger whose process is known to live, and whose books are kept as long as it does.

What those left open that live no more is closed, and what a write that failed left open; what is
closed is sealed.
"""

from __future__ import annotations

import platform
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import structlog

from gateway.beside import running
from gateway.boots import Boots
from gateway.clock import SYSTEM_CLOCK
from gateway.door import Door
from gateway.leases import Leases
from gateway.ledger import Ledger
from gateway.left_open import follow
from gateway.money.keeping import Keeper
from gateway.store.address import Postgres
from gateway.store.writer import Writer
from gateway.stores import database_of
from runtime.settings import Settings

log = structlog.get_logger()


@asynccontextmanager
async def kept_ledger(
    settings: Settings, writer: Writer, boot_id: str, door: Door, keeper: Keeper
) -> AsyncIterator[Ledger]:
    """The ledger, until it is left. Raises StoreUnavailable."""
    async with (
        _living(settings, writer, boot_id, door) as ledger,
        running(follow(ledger)),
        running(keeper.follow()),
    ):
        yield ledger


@asynccontextmanager
async def _living(
    settings: Settings, writer: Writer, boot_id: str, door: Door
) -> AsyncIterator[Ledger]:
    boots = Boots(settings.state_dir)
    with boots.living(boot_id):
        if isinstance(database_of(settings), Postgres):
            async with _leasing(writer, boot_id, door, boots) as ledger:
                yield ledger
            return
        ledger = Ledger(writer, SYSTEM_CLOCK, boot_id, door)
        reap = partial(_reap, ledger, boots)
        await reap()
        async with running(boots.watch(reap)):
            yield ledger


@asynccontextmanager
async def _leasing(writer: Writer, boot_id: str, door: Door, boots: Boots) -> AsyncIterator[Ledger]:
    leases = Leases(writer, boots, boot_id, platform.node(), SYSTEM_CLOCK)
    ledger = Ledger(writer, SYSTEM_CLOCK, boot_id, door, lambda: leases.is_assured)

    async def reap() -> None:
        if orphans := await ledger.reap_orphans(leases.is_alive, leases.end_the_dead):
            log.warning("orphans_reaped", records=orphans)

    await leases.renew()
    await reap()
    async with running(leases.watch(reap)), running(boots.watch(reap)):
        yield ledger
    await leases.leave()


async def _reap(ledger: Ledger, boots: Boots) -> None:
    if orphans := await ledger.reap_orphans(boots.is_alive):
        log.warning("orphans_reaped", records=orphans)
