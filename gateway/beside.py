"""What runs beside the requests as long as a gateway process lives: its books are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import structlog

from gateway.boots import Boots
from gateway.ledger import Ledger
from gateway.left_open import follow
from gateway.money.keeping import Keeper

log = structlog.get_logger()


async def keep_books(stack: AsyncExitStack, ledger: Ledger, boots: Boots, keeper: Keeper) -> None:
    """Close what killed processes leave open, and writes that failed; seal what is closed."""
    await reap(ledger, boots)
    await stack.enter_async_context(running(boots.watch(partial(reap, ledger, boots))))
    await stack.enter_async_context(running(follow(ledger)))
    await stack.enter_async_context(running(keeper.follow()))


async def reap(ledger: Ledger, boots: Boots) -> None:
    """Close what boots left open that live no more."""
    if orphans := await ledger.reap_orphans(boots.is_alive):
        log.warning("orphans_reaped", records=orphans)


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs a coroutine beside, until it is left."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
