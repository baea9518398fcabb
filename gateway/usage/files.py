"""A period's usage as files, one for each tenant: written once, whole, when the period is closed.

A record belongs to the period in which its request began, so the end of the last one is awaited.
"""

from __future__ import annotations

import asyncio
import datetime
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from gateway.identity import tenants
from gateway.store.address import Database
from gateway.store.reader import read, read_in_thread
from gateway.store.sql import Connection
from gateway.usage.records import Format, export
from runtime import durable

POLL_S = 1.0

Moment = datetime.datetime


class PeriodOpen(Exception):
    """Requests of the period still run."""


def write(folder: Path, database: Database, start: Moment, end: Moment, fmt: Format) -> list[Path]:
    """The usage in [start, end), for each tenant; files that are there already stay as they are.

    Returns what it wrote. Raises StoreUnavailable or OSError; what it wrote before that is whole.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    written = []
    for tenant in read(database, tenants.list_tenants):
        path = folder / f"usage-{tenant.name}-{_name(start)}-{_name(end)}.{fmt}"
        if not path.exists():
            _write(path, export(database, tenant.id, us(start), us(end), fmt))
            written.append(path)
    return written


async def closed(database: Database, end: Moment, patience_s: float) -> None:
    """Returns once no request that began before `end` runs. Raises PeriodOpen."""
    try:
        async with asyncio.timeout(patience_s):
            while await read_in_thread(database, partial(_num_open, end_us=us(end))):
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise PeriodOpen(
            f"requests of the period still run after {patience_s:g} s; the next run writes it"
        ) from None


def us(moment: Moment) -> int:
    """Microseconds since 1970, as the store has them."""
    return int(moment.timestamp()) * 1_000_000


def _num_open(db: Connection, end_us: int) -> int:
    query = "SELECT count(*) FROM usage_record WHERE state = 'open' AND charge_at < :end_us"
    count: int = db.execute(query, {"end_us": end_us}).fetchone()[0]
    return count


def _name(moment: Moment) -> str:
    return moment.strftime("%Y%m%dT%H%MZ")


def _write(path: Path, chunks: Iterable[bytes]) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with durable.naming(path), open(handle, "wb") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
