"""Whole copies of the database, taken while it is written to and put back while it is read.

SQLite's backup reads one snapshot, so nobody waits for a copy. Putting one back is one transaction:
readers see the old content or the new, also when it is cut short. Either way it's one file.
"""

from __future__ import annotations

import datetime
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec import Struct

from gateway.store.connection import open_for_reading, open_for_writing
from gateway.store.errors import StoreError, StoreUnavailable
from gateway.store.reader import read
from gateway.store.records import orphan
from gateway.store.sql import Connection

BACKUPS = "backups"  # the folder beside the database for what we keep by ourselves

_SPLIT = 1_000_000  # SQLite's sum() overflows at 9 million units of money, so it sums two halves


class StoreBroken(StoreError):
    """A database isn't whole."""


class Facts(Struct, frozen=True, kw_only=True):
    """What a database holds."""

    revision: str  # of its schema
    tenants: int
    keys: int
    records: int


class Lost(Struct, frozen=True, kw_only=True):
    """What a database holds and another doesn't: gone, once it has that one's content."""

    records: int = 0  # closed usage records
    amounts: dict[str, int] = {}  # what they were billed, in pico-units by currency
    tenants: int = 0
    keys: int = 0
    revocations: int = 0  # keys, tenants, projects: ended since, and would be live again
    rotations: int = 0  # keys with a newer secret: it would be none, and the one before would be

    def __bool__(self) -> bool:
        return bool(self.records or self.tenants or self.keys or self.revocations or self.rotations)


def copy(source: Path, target: Path) -> None:
    """Copy a database as of now to a new file (0600), durably. Raises StoreUnavailable."""
    with _told(source):
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(open_for_reading(source)) as old, closing(sqlite3.connect(target)) as new:
            old.backup(new)
            new.execute("PRAGMA journal_mode = DELETE")  # a file that needs none beside it


def put_back(source: Path, target: Path) -> None:
    """Give the database at `target`, made if it's missing, the content of `source`, at once.

    Raises StoreUnavailable.
    """
    with _told(target):
        os.close(os.open(target, os.O_RDWR | os.O_CREAT, 0o600))
        with closing(open_for_reading(source)) as new, closing(open_for_writing(target)) as old:
            new.backup(old)


def check(path: Path) -> None:
    """Read all of a database. Raises StoreBroken with what isn't as it should be."""
    try:
        with closing(open_for_reading(path)) as db:
            found = [row[0] for row in db.execute("PRAGMA integrity_check(3)")]
            orphans = db.execute("PRAGMA foreign_key_check").fetchall()
    except (sqlite3.Error, StoreUnavailable) as error:
        raise StoreBroken(f"The database {path} can't be read: {error}") from None
    if found != ["ok"] or orphans:
        faults = "; ".join(str(fault) for fault in found if fault != "ok") or "rows point nowhere"
        raise StoreBroken(f"The database {path} is damaged: {faults}.")


def facts(path: Path) -> Facts:
    """What a database of ours holds. Raises StoreUnavailable, also if it isn't one of ours."""

    def query(db: Connection) -> Facts:
        (revision,) = db.execute("SELECT version_num FROM alembic_version").fetchone()
        counts = {
            name: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608
            for name, table in _TABLES
        }
        return Facts(revision=revision, **counts)

    return read(path, query)


def schema_of(path: Path) -> frozenset[tuple[str, str, str | None]]:
    """Every table, index and trigger: its kind, its name, and how it is made."""
    return read(path, lambda db: frozenset(db.execute("SELECT type, name, sql FROM sqlite_master")))


def lost(now: Path, then: Path) -> Lost:
    """What `now` would lose by getting the content of `then`, of the same schema."""

    def query(db: sqlite3.Connection) -> Lost:
        amounts: dict[str, int] = {}
        records = 0
        for currency, count, high, low in db.execute(_LOST_RECORDS):
            records += count
            amounts[currency] = (high or 0) * _SPLIT + (low or 0)
        tenants, keys, revocations, rotations = db.execute(_LOST_ACCOUNTS).fetchone()
        return Lost(
            records=records,
            amounts={currency: amount for currency, amount in amounts.items() if amount},
            tenants=tenants,
            keys=keys,
            revocations=revocations,
            rotations=rotations,
        )

    with closing(open_for_reading(now)) as db:
        db.execute("ATTACH ? AS other", (f"file:{then.absolute()}?mode=ro",))
        return query(db)


def close_open_records(path: Path, now_us: int) -> int:
    """Close, unbilled, what was open when a copy was taken: nobody is left to settle it."""
    with closing(open_for_writing(path)) as db:
        closed = orphan(db, lambda _boot: True, now_us)
        db.execute("PRAGMA journal_mode = DELETE")
    return closed


def keep_last(folder: Path, pattern: str, count: int) -> None:
    """Remove all but the last `count` files, by name, of those that match."""
    for path in sorted(folder.glob(pattern))[:-count]:
        path.unlink(missing_ok=True)


def stamp() -> str:
    """Now, UTC, in a file's name: later names sort later."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S.%fZ")


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StoreUnavailable(f"The database {path} can't be copied: {error}.") from error


_TABLES = (("tenants", "tenant"), ("keys", "api_key"), ("records", "usage_record"))

_LOST_RECORDS = """
SELECT currency, count(*), sum(amount_pico / 1000000), sum(amount_pico % 1000000)
FROM main.usage_record
WHERE state <> 'open'
  AND id NOT IN (SELECT id FROM other.usage_record WHERE state <> 'open')
GROUP BY currency
"""

_LOST_ACCOUNTS = """
SELECT
  (SELECT count(*) FROM main.tenant WHERE id NOT IN (SELECT id FROM other.tenant)),
  (SELECT count(*) FROM main.api_key WHERE id NOT IN (SELECT id FROM other.api_key)),
  (SELECT count(*) FROM main.api_key AS ours JOIN other.api_key AS theirs USING (id)
   WHERE ours.revoked_at IS NOT NULL AND theirs.revoked_at IS NULL)
  + (SELECT count(*) FROM main.tenant AS ours JOIN other.tenant AS theirs USING (id)
     WHERE ours.disabled_at IS NOT NULL AND theirs.disabled_at IS NULL)
  + (SELECT count(*) FROM main.project AS ours JOIN other.project AS theirs USING (id)
     WHERE ours.archived_at IS NOT NULL AND theirs.archived_at IS NULL),
  (SELECT count(*) FROM main.api_key AS ours JOIN other.api_key AS theirs USING (id)
   WHERE ours.revoked_at IS NULL AND ours.rotated_at > coalesce(theirs.rotated_at, 0))
"""
