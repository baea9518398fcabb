"""How a connection to the SQLite file is opened: the settings that make its promises true.

`synchronous=FULL` makes a commit survive a power cut. Neither function creates a file: `migrate`
does, so that it's never readable by others.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from gateway.store.errors import StoreUnavailable, is_of_the_file

DATABASE = "bulkhead.db"  # its name in the state folder
BUSY_TIMEOUT_S = 5.0

_WRITE_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA recursive_triggers = ON",  # else REPLACE would delete past the ledger's triggers
    "PRAGMA journal_size_limit = 67108864",
)
_READ_PRAGMAS = ("PRAGMA query_only = ON", "PRAGMA schema_version")


def open_for_writing(path: Path) -> sqlite3.Connection:
    """A connection that may write, in autocommit mode. Raises StoreUnavailable."""
    return _open(path, "rw", _WRITE_PRAGMAS)


def open_for_reading(path: Path) -> sqlite3.Connection:
    """A connection that can't write; writers never make it wait. Raises StoreUnavailable."""
    return _open(path, "ro", _READ_PRAGMAS)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Take the write lock, then commit, or roll back if the block raises.

    Raises StoreUnavailable if the file or its disk can't take it.
    """
    with of_the_file():
        db.execute("BEGIN IMMEDIATE")
        with db:
            yield db


@contextmanager
def of_the_file() -> Iterator[None]:
    """In here, SQLite's faults that are of the file or its disk are StoreUnavailable."""
    try:
        yield
    except sqlite3.Error as error:
        if not is_of_the_file(error):
            raise
        raise StoreUnavailable(f"The database can't be used: {error}.") from error


def _open(path: Path, mode: Literal["rw", "ro"], pragmas: tuple[str, ...]) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?mode={mode}"
    db = None
    try:
        db = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        for pragma in pragmas:
            db.execute(pragma).fetchall()
    except sqlite3.Error as error:
        if db is not None:
            db.close()
        raise StoreUnavailable(f"The database {path} can't be opened: {error}.") from error
    return db
