"""The store is used by who may: SQLite's file by one gateway, and while no restore wants it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

from gateway.door import take
from gateway.store.address import Database, Postgres
from gateway.store.hold import Use
from runtime import state

LOCK_WAIT_S = 10.0


@asynccontextmanager
async def in_use(database: Database) -> AsyncIterator[Use | None]:
    """A share in the use of SQLite's file, which a restore asks for; a server has its own ways."""
    if isinstance(database, Postgres):
        try:
            yield None
        finally:
            database.close()
        return
    use = Use(database)
    await take(use)
    try:
        yield use
    finally:
        use.let_go()


async def own_store(state_dir: Path) -> IO[str]:
    """Be the one gateway of this state folder; one that was just killed may take a moment to go."""
    deadline = asyncio.get_running_loop().time() + LOCK_WAIT_S
    while True:
        try:
            return state.own(state_dir, "gateway")
        except state.StateInUse:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.1)
