"""How PostgreSQL is migrated: in one transaction, one process at a time; tried by undoing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.pool import NullPool

from gateway.store.address import Postgres
from gateway.store.postgres.session import connect

MIGRATING = 0x6D_69_67_72  # the advisory lock of migrations
WAIT_S = 10  # for what serves to let go of a table

_TABLES = """
SELECT relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE relkind = 'r' AND nspname = current_schema() AND relname <> 'alembic_version'
ORDER BY relname
"""


@contextmanager
def migrating(
    address: Postgres, statements: list[str] | None = None, *, undo: bool = False
) -> Iterator[Connection]:
    """A connection inside a transaction that no other migration runs beside.

    What it runs is noted in `statements`; with `undo` nothing of it stays.
    """
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: _plain(address), poolclass=NullPool
    )
    if statements is not None:
        event.listen(engine, "before_cursor_execute", _noting(statements))
    with engine.connect() as connection:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATING})")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{WAIT_S}s'")
        yield connection
        connection.rollback() if undo else connection.commit()


def rows(connection: Connection) -> dict[str, int]:
    """How many each table has."""
    tables = [name for (name,) in connection.exec_driver_sql(_TABLES).fetchall()]
    return {
        name: connection.exec_driver_sql(f'SELECT count(*) FROM "{name}"').scalar_one()  # noqa: S608
        for name in tables
    }


def _plain(address: Postgres) -> Any:
    plain = connect(address)
    plain.autocommit = False
    return plain


def _noting(statements: list[str]) -> Any:
    def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    return note
