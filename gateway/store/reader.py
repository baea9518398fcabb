"""Reads beside the writer: a read-only connection for each query, in a thread.

A query sees one snapshot of the database and is short, so that SQLite's write-ahead log can be
folded back into the file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

from anyio import to_thread

from gateway.store import kept_sessions
from gateway.store.address import Database, Postgres
from gateway.store.connection import open_for_reading
from gateway.store.errors import StoreUnavailable, is_of_the_file
from gateway.store.sql import Connection

T = TypeVar("T")


def read(database: Database, query: Callable[[Connection], T]) -> T:
    """Run `query` over one snapshot. Raises StoreUnavailable."""
    if isinstance(database, Postgres):
        return kept_sessions.read(database, query)
    with closing(open_for_reading(database)) as db:
        try:
            db.execute("BEGIN")
            return query(db)
        except sqlite3.DatabaseError as error:
            if not (isinstance(error, sqlite3.OperationalError) or is_of_the_file(error)):
                raise
            raise StoreUnavailable(f"The database {database} can't be read: {error}.") from error


async def read_in_thread(database: Database, query: Callable[[Connection], T]) -> T:
    """`read`, without holding up the event loop; abandoned when the caller is cancelled."""
    return await to_thread.run_sync(read, database, query, abandon_on_cancel=True)
