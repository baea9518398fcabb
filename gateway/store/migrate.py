"""Create the database or bring it up to date, whoever else is trying to at the same moment.

Works from the installed package: there is no alembic.ini. All steps run in one transaction, and a
file with something in it is copied before. `rehearse` runs them on a copy instead, and with
PostgreSQL in a transaction that it undoes.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from msgspec import Struct
from sqlalchemy import Connection, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from engines.extras import how_to_install
from gateway.store.address import Database, Postgres
from gateway.store.backup import BACKUPS, copy, keep_last, stamp
from gateway.store.connection import open_for_reading, open_for_writing
from gateway.store.errors import StoreTooNew, StoreUnavailable

MIGRATIONS = "gateway.store:migrations"
KEPT = 3  # copies from before a migration

_PRIVATE = 0o600
_LOCK_NOT_AVAILABLE = "55P03"  # PostgreSQL's
_HELD = (
    "something reads or writes it for long, such as an export or pg_dump, and what serves would "
    "wait, too. Nothing was changed: let that end, and try again"
)
_READS = ("SELECT", "PRAGMA", "BEGIN", "COMMIT", "SAVEPOINT", "RELEASE", "--")


class Step(Struct, frozen=True, kw_only=True):
    """A migration that a database still needs."""

    revision: str
    says: str  # what it is for, in a line


class Rehearsed(Struct, frozen=True, kw_only=True):
    """A step as it went on a copy of the database."""

    revision: str
    says: str
    sql: list[str]  # what it ran, without what only reads
    seconds: float


class Rehearsal(Struct, frozen=True, kw_only=True):
    """What a migration would do to a database: tried, and nothing changed."""

    current: str | None  # its revision; None: there is nothing yet
    head: str
    steps: list[Rehearsed]
    rows_before: dict[str, int]  # by table
    rows_after: dict[str, int]


def migrate(database: Database, migrations: str = MIGRATIONS) -> list[Step]:
    """Bring a database to the present schema; a file is created, mode 0600, if it's missing.

    Returns the steps it took. Raises StoreTooNew if newer code made it, StoreUnavailable if it
    can't be read or written.
    """
    with _told(database):
        if isinstance(database, Postgres):
            with _postgres().migrating(database) as connection:
                return _upgrade(connection, database, migrations)[1]
        with _alone(database):
            os.close(os.open(database, os.O_RDWR | os.O_CREAT, _PRIVATE))
            with _connected(database) as connection:
                return _upgrade(connection, database, migrations)[1]


def needed(database: Database, migrations: str = MIGRATIONS) -> list[Step]:
    """The steps that `migrate` would take. Looks only. Raises as it does."""
    with _told(database):
        if isinstance(database, Postgres):
            with _postgres().migrating(database, undo=True) as connection:
                return _pending(connection, database, _config(migrations))[1]
        reading = partial(open_for_reading, database)
        engine = create_engine("sqlite://", creator=reading, poolclass=NullPool)
        with engine.connect() as connection:
            return _pending(connection, database, _config(migrations))[1]


def rehearse(database: Database, migrations: str = MIGRATIONS) -> Rehearsal:
    """Take the steps that `migrate` would take, and keep nothing of it. Raises as it does."""
    if isinstance(database, Postgres):
        return _rehearse_postgres(database, migrations)
    return _rehearse_copy(database, migrations)


def _upgrade(
    connection: Connection, database: Database, migrations: str
) -> tuple[str | None, list[Step]]:
    """The revision there was, and the steps that were taken."""
    current, steps = _pending(connection, database, _config(migrations))
    if steps and current is not None and not isinstance(database, Postgres):
        _keep_a_copy(database, steps[-1])
    if steps:
        command.upgrade(_config(migrations, connection), "head")
    return current, steps


def _rehearse_postgres(address: Postgres, migrations: str) -> Rehearsal:
    taken: list[Rehearsed] = []
    statements: list[str] = []
    with _told(address), _postgres().migrating(address, statements, undo=True) as connection:
        before = _postgres().rows(connection)
        current, steps = _pending(connection, address, _config(migrations))
        for step in steps:
            statements.clear()
            began = time.perf_counter()
            command.upgrade(_config(migrations, connection), step.revision)
            taken.append(_rehearsed(step, statements, began))
        after = _postgres().rows(connection)
    return _rehearsal(current, taken, before, after, migrations)


def _postgres() -> ModuleType:
    try:
        from gateway.store.postgres import migrating
    except ModuleNotFoundError:
        raise StoreUnavailable(f"PostgreSQL needs psycopg: {how_to_install('postgres')}") from None
    return migrating


def _rehearse_copy(path: Path, migrations: str) -> Rehearsal:
    with _told(path), tempfile.TemporaryDirectory(prefix=".rehearsal-", dir=path.parent) as folder:
        trial = Path(folder) / path.name
        if path.exists():
            copy(path, trial)
        else:
            trial.touch(_PRIVATE)
        with _connected(trial) as connection:
            current, steps = _pending(connection, path, _config(migrations))
        before = _rows(trial)
        taken = [_rehearse_step(trial, step, migrations) for step in steps]
        return _rehearsal(current, taken, before, _rows(trial), migrations)


def _rehearsal(
    current: str | None,
    taken: list[Rehearsed],
    before: dict[str, int],
    after: dict[str, int],
    migrations: str,
) -> Rehearsal:
    head = ScriptDirectory.from_config(_config(migrations)).get_current_head()
    return Rehearsal(
        current=current, head=str(head), steps=taken, rows_before=before, rows_after=after
    )


def _rehearse_step(trial: Path, step: Step, migrations: str) -> Rehearsed:
    statements: list[str] = []
    began = time.perf_counter()
    with _connected(trial, statements) as connection:
        command.upgrade(_config(migrations, connection), step.revision)
    return _rehearsed(step, statements, began)


def _rehearsed(step: Step, statements: list[str], began: float) -> Rehearsed:
    return Rehearsed(
        revision=step.revision,
        says=step.says,
        sql=[text for text in map(str.strip, statements) if not text.upper().startswith(_READS)],
        seconds=time.perf_counter() - began,
    )


def _pending(
    connection: Connection, database: Database, config: Config
) -> tuple[str | None, list[Step]]:
    """The revision of a database, and what it still needs, in order. Raises StoreTooNew."""
    script = ScriptDirectory.from_config(config)
    current = MigrationContext.configure(connection).get_current_revision()
    every: list[Script] = list(script.walk_revisions())  # the newest first
    if current is not None and current not in {step.revision for step in every}:
        raise StoreTooNew(
            f"The database {database} has schema {current}, which this version of Bulkhead doesn't "
            "know: run the newer version that made it, or restore a backup."
        )
    pending = []
    for step in every:
        if step.revision == current:
            break
        pending.append(Step(revision=step.revision, says=step.doc.strip()))
    return current, pending[::-1]


def _keep_a_copy(path: Path, last: Step) -> None:
    """The database as it is. The migration holds the write lock: the copy misses nothing."""
    folder = path.parent / BACKUPS
    folder.mkdir(mode=0o700, exist_ok=True)
    copy(path, folder / f"store-{stamp()}-before-{last.revision}.db")
    keep_last(folder, "store-*-before-*.db", KEPT)


def _config(migrations: str, connection: Connection | None = None) -> Config:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", migrations)
    config.set_main_option("path_separator", "os")
    return config


def _rows(path: Path) -> dict[str, int]:
    with closing(open_for_reading(path)) as db:
        tables = db.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' "
            "AND name <> 'alembic_version' ORDER BY name"
        ).fetchall()
        return {
            name: db.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]  # noqa: S608 - its own
            for (name,) in tables
        }


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock file beside the database: creating it and switching it to WAL aren't atomic."""
    lock = os.open(path.with_name(path.name + ".migrate-lock"), os.O_RDWR | os.O_CREAT, _PRIVATE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextmanager
def _connected(path: Path, statements: list[str] | None = None) -> Iterator[Connection]:
    """A connection inside a writing transaction; what it runs is noted in `statements`."""
    engine = create_engine("sqlite://", creator=partial(open_for_writing, path), poolclass=NullPool)
    event.listen(engine, "begin", _begin_immediate)
    with engine.begin() as connection:
        if statements is not None:
            connection.connection.set_trace_callback(statements.append)
        yield connection


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def _told(database: Database) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error, DBAPIError) as error:
        is_held = getattr(getattr(error, "orig", None), "sqlstate", "") == _LOCK_NOT_AVAILABLE
        why = _HELD if is_held else error
        raise StoreUnavailable(f"The database {database} can't be migrated: {why}") from error
