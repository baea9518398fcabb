"""Create the database or bring it up to date, whoever else is trying to at the same moment.

Works from the installed package: there is no alembic.ini. All steps run in one transaction.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from gateway.store.connection import open_for_writing
from gateway.store.errors import StoreTooNew, StoreUnavailable

_PRIVATE = 0o600


def migrate(path: Path) -> None:
    """Bring the database at `path` to the present schema; create it, mode 0600, if it's missing.

    Raises StoreTooNew if newer code made it, StoreUnavailable if it can't be read or written.
    """
    try:
        with _alone(path):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, _PRIVATE))
            _migrate(path)
    except (OSError, sqlite3.Error, DBAPIError) as error:
        raise StoreUnavailable(f"The database {path} can't be migrated: {error}") from error


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock file beside the database: creating it and switching it to WAL aren't atomic."""
    lock = os.open(path.with_name(path.name + ".migrate-lock"), os.O_RDWR | os.O_CREAT, _PRIVATE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _migrate(path: Path) -> None:
    engine = create_engine("sqlite://", creator=partial(open_for_writing, path), poolclass=NullPool)
    event.listen(engine, "begin", _begin_immediate)
    with engine.begin() as connection:
        _upgrade(connection, path)


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _upgrade(connection: Connection, path: Path) -> None:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", "gateway.store:migrations")
    config.set_main_option("path_separator", "os")
    script = ScriptDirectory.from_config(config)
    current = MigrationContext.configure(connection).get_current_revision()
    if current == script.get_current_head():
        return
    if current is not None and current not in {step.revision for step in script.walk_revisions()}:
        raise StoreTooNew(
            f"The database {path} has schema {current}, which this version of Bulkhead doesn't "
            "know: run the newer version that made it, or restore a backup."
        )
    command.upgrade(config, "head")
