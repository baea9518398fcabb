"""A period's usage as files with a signed manifest: written once, whole, when the period is closed.

A record belongs to the period in which its request began, so the end of the last one is awaited.
The manifest comes last. Until it's there, a bound beside it says up to which record the files go,
so that a run after one that failed writes the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.identity import tenants
from gateway.store.address import Database
from gateway.store.reader import read, read_in_thread
from gateway.store.sql import Connection
from gateway.usage.calendar import Moment, us
from gateway.usage.export import Export, Form
from gateway.usage.manifest import FileEntry, contents_of, entry_of, sign
from gateway.usage.names import Names
from gateway.usage.selection import Selection, bound_of
from runtime import durable

POLL_S = 1.0


class PeriodOpen(Exception):
    """Requests of the period still run."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to write: the usage in [start, end), a file for each tenant or one for all of them."""

    start: Moment
    end: Moment
    form: Form
    names: Names
    together: bool = False

    @property
    def title(self) -> str:
        """How its files are called, but for a tenant's name."""
        return f"{_name(self.start)}-{_name(self.end)}.{self.form.suffix}"


def write(folder: Path, database: Database, order: Order, key: Ed25519PrivateKey) -> list[Path]:
    """Write the files and their manifest; nothing if the manifest is there already.

    Returns the files. Raises StoreUnavailable, NoParquet or OSError; what it wrote before that is
    whole, and the next run writes the same again.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    name = f"usage-{'' if order.together else 'tenants-'}{order.title}"
    manifest, note = folder / f"{name}.manifest.json", folder / f".{name}.bound"
    if manifest.exists():
        note.unlink(missing_ok=True)
        return []
    selection = _selection(order, database, note)
    entries = []
    for name, tenant_id in _tenants(order, database):
        path = folder / f"usage-{name}{order.title}"
        whose = Selection(selection.start_us, selection.end_us, selection.bound, tenant_id)
        entries.append(_write(path, Export(database, whose, order.form, order.names)))
    durable.replace(manifest, sign(contents_of(selection, order.form, entries), key))
    note.unlink(missing_ok=True)
    return [folder / entry.name for entry in entries]


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


def write_whole(path: Path, chunks: Iterable[bytes]) -> tuple[int, str]:
    """A private file (0600) that is there whole or not at all; its size and SHA-256."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    sha256, size = hashlib.sha256(), 0
    try:
        handle = _open(draft, path)
        with durable.naming(path), open(handle, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
                sha256.update(chunk)
                size += len(chunk)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return size, sha256.hexdigest()


def _open(draft: Path, path: Path) -> int:
    """A fault names the file that was asked for."""
    try:
        return os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as fault:
        fault.filename = str(path)
        raise


def _write(path: Path, export: Export) -> FileEntry:
    size, sha256 = write_whole(path, export)
    return entry_of(path.name, size, sha256, export)


def _selection(order: Order, database: Database, note: Path) -> Selection:
    """Up to where a run before this one went, or else to where the period does now."""
    start_us, end_us = us(order.start), us(order.end)
    if note.exists():
        bound = int(note.read_text("ascii"))
    else:
        bound = read(database, partial(bound_of, start_us=start_us, end_us=end_us))
        durable.replace(note, str(bound).encode())
    return Selection(start_us, end_us, bound)


def _tenants(order: Order, database: Database) -> list[tuple[str, str | None]]:
    if order.together:
        return [("", None)]
    return [(f"{tenant.name}-", tenant.id) for tenant in read(database, tenants.list_tenants)]


def _num_open(db: Connection, end_us: int) -> int:
    query = "SELECT count(*) FROM usage_record WHERE state = 'open' AND charge_at < :end_us"
    count: int = db.execute(query, {"end_us": end_us}).fetchone()[0]
    return count


def _name(moment: Moment) -> str:
    return moment.strftime("%Y%m%dT%H%MZ")
