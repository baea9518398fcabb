"""Reads beside the writer: a read-only connection for each query, in a thread.

A query sees one snapshot of the database and is short, so that the write-ahead log can be folded
back into the file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from anyio import to_thread

from gateway.store.connection import open_for_reading
from gateway.store.errors import StoreUnavailable, is_of_the_file

T = TypeVar("T")


def read(path: Path, query: Callable[[sqlite3.Connection], T]) -> T:
    """Run `query` over one snapshot. Raises StoreUnavailable."""
    with closing(open_for_reading(path)) as db:
        try:
            db.execute("BEGIN")
            return query(db)
        except sqlite3.DatabaseError as error:
            if not (isinstance(error, sqlite3.OperationalError) or is_of_the_file(error)):
                raise
            raise StoreUnavailable(f"The database {path} can't be read: {error}.") from error


async def read_in_thread(path: Path, query: Callable[[sqlite3.Connection], T]) -> T:
    """`read`, without holding up the event loop; abandoned when the caller is cancelled."""
    return await to_thread.run_sync(read, path, query, abandon_on_cancel=True)
