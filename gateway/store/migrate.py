"""Create the database or bring it up to date, whoever else is trying to at the same moment.

Works from the installed package: there is no alembic.ini. All steps run in one transaction, and a
database with something in it is copied before. `rehearse` runs them on a copy instead.
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

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from msgspec import Struct
from sqlalchemy import Connection, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from gateway.store.backup import BACKUPS, copy, keep_last, stamp
from gateway.store.connection import open_for_reading, open_for_writing
from gateway.store.errors import StoreTooNew, StoreUnavailable

MIGRATIONS = "gateway.store:migrations"
KEPT = 3  # copies from before a migration

_PRIVATE = 0o600
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


def migrate(path: Path, migrations: str = MIGRATIONS) -> list[Step]:
    """Bring the database at `path` to the present schema; create it, mode 0600, if it's missing.

    Returns the steps it took. Raises StoreTooNew if newer code made it, StoreUnavailable if it
    can't be read or written.
    """
    with _told(path), _alone(path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, _PRIVATE))
        with _connected(path) as connection:
            current, steps = _pending(connection, path, _config(migrations))
            if steps and current is not None:
                _keep_a_copy(path, steps[-1])
            if steps:
                command.upgrade(_config(migrations, connection), "head")
            return steps


def needed(path: Path, migrations: str = MIGRATIONS) -> list[Step]:
    """The steps that `migrate` would take. Looks only. Raises as it does."""
    engine = create_engine("sqlite://", creator=partial(open_for_reading, path), poolclass=NullPool)
    with _told(path), engine.connect() as connection:
        return _pending(connection, path, _config(migrations))[1]


def rehearse(path: Path, migrations: str = MIGRATIONS) -> Rehearsal:
    """Take the steps that `migrate` would take, on a copy. Raises as it does."""
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
        head = ScriptDirectory.from_config(_config(migrations)).get_current_head()
        return Rehearsal(
            current=current,
            head=str(head),
            steps=taken,
            rows_before=before,
            rows_after=_rows(trial),
        )


def _rehearse_step(trial: Path, step: Step, migrations: str) -> Rehearsed:
    statements: list[str] = []
    began = time.perf_counter()
    with _connected(trial, statements) as connection:
        command.upgrade(_config(migrations, connection), step.revision)
    return Rehearsed(
        revision=step.revision,
        says=step.says,
        sql=[text for text in map(str.strip, statements) if not text.upper().startswith(_READS)],
        seconds=time.perf_counter() - began,
    )


def _pending(connection: Connection, path: Path, config: Config) -> tuple[str | None, list[Step]]:
    """The revision of a database, and what it still needs, in order. Raises StoreTooNew."""
    script = ScriptDirectory.from_config(config)
    current = MigrationContext.configure(connection).get_current_revision()
    every: list[Script] = list(script.walk_revisions())  # the newest first
    if current is not None and current not in {step.revision for step in every}:
        raise StoreTooNew(
            f"The database {path} has schema {current}, which this version of Bulkhead doesn't "
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
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error, DBAPIError) as error:
        raise StoreUnavailable(f"The database {path} can't be migrated: {error}") from error
