"""How a connection to the store is opened, and how a transaction is one: on both databases.

SQLite's settings make its promises true: `synchronous=FULL` makes a commit survive a power cut.
Nothing here creates a file: `migrate` does, so that it's never readable by others.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, cast, overload
from urllib.parse import quote

from engines.extras import how_to_install
from gateway.store.address import Database, Postgres
from gateway.store.errors import StoreUnavailable, as_ours, is_of_the_file
from gateway.store.in_order import InOrder
from gateway.store.sql import Connection, Session

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


@overload
def open_for_writing(database: Path) -> sqlite3.Connection: ...


@overload
def open_for_writing(database: Database) -> Connection: ...


def open_for_writing(database: Database) -> Connection:
    """A connection that may write, in autocommit mode. Raises StoreUnavailable."""
    if isinstance(database, Postgres):
        return session(database)
    return _open(database, "rw", _WRITE_PRAGMAS)


@overload
def open_for_reading(database: Path) -> sqlite3.Connection: ...


@overload
def open_for_reading(database: Database) -> Connection: ...


def open_for_reading(database: Database) -> Connection:
    """A connection that can't write; writers never make it wait. Raises StoreUnavailable."""
    if isinstance(database, Postgres):
        return _reading(session(database))
    return _open(database, "ro", _READ_PRAGMAS)


@contextmanager
def transaction(db: Connection) -> Iterator[Connection]:
    """Take the write lock, then commit, or roll back if the block raises.

    Raises StoreUnavailable if the store can't take it, and the store's IntegrityErrors.
    """
    with of_the_file():
        begin(db)
        try:
            yield db
        except BaseException as error:
            _roll_back(db)
            if isinstance(error, sqlite3.IntegrityError):
                raise as_ours(error) from error
            raise
        commit(db)


def begin(db: Connection) -> None:
    """Take the write lock. SQLite raises OperationalError while another has it."""
    if isinstance(db, sqlite3.Connection):
        db.execute("BEGIN IMMEDIATE")
    else:
        cast(Session, db).begin()


def commit(db: Connection) -> None:
    """Durable when this returns."""
    if isinstance(db, sqlite3.Connection):
        db.execute("COMMIT")
    else:
        cast(Session, db).commit()


def directory_version(db: Connection) -> tuple[int, int]:
    """It moves with every change of a tenant or a key, and when a backup is put back.

    A backup may bring back our own count, with other keys. Beside it stands what a restore always
    changes: the schema's version of SQLite's file, and the table's own number in PostgreSQL.
    """
    sql = _VERSION if isinstance(db, sqlite3.Connection) else _VERSION_POSTGRES
    version, content = db.execute(sql).fetchone()
    return version, content


def has_table(db: Connection, name: str) -> bool:
    """Whether there is such a table; in an older schema there may not be."""
    sql = _TABLE if isinstance(db, sqlite3.Connection) else _TABLE_POSTGRES
    return db.execute(sql, {"name": name}).fetchone() is not None


def _roll_back(db: Connection) -> None:
    with suppress(sqlite3.Error, StoreUnavailable):  # it has been, if the store is at fault
        db.execute("ROLLBACK")


def _reading(begun: Session) -> Session:
    try:
        begun.begin_reading()
    except StoreUnavailable:
        begun.close()
        raise
    return begun


def session(database: Postgres) -> Session:
    """A new session with the server. Raises StoreUnavailable, also where psycopg isn't there."""
    try:
        from gateway.store.postgres.session import PostgresSession
    except ModuleNotFoundError:
        raise StoreUnavailable(
            f"The database {database} needs psycopg: {how_to_install('postgres')}"
        ) from None
    return PostgresSession(database)


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
        db = sqlite3.connect(
            uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, factory=InOrder
        )
        for pragma in pragmas:
            db.execute(pragma).fetchall()
    except sqlite3.Error as error:
        if db is not None:
            db.close()
        raise StoreUnavailable(f"The database {path} can't be opened: {error}.") from error
    return db


_TABLE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :name"
_TABLE_POSTGRES = """
SELECT 1 FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE relname = :name AND nspname = current_schema()
"""
_VERSION = "SELECT version, schema_version FROM directory_version, pragma_schema_version"
_VERSION_POSTGRES = """
SELECT version, cast(cast(tableoid AS TEXT) AS BIGINT) FROM directory_version
"""
