"""A store moves from SQLite into an empty PostgreSQL database: every row, in one transaction.

Nobody may use either meanwhile. The guards of the ledger are off for that transaction alone: what
is closed is written as it is.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import Table

from gateway.store.address import Postgres
from gateway.store.connection import open_for_reading, open_for_writing, transaction
from gateway.store.current import bring_up_to_date
from gateway.store.errors import StoreError
from gateway.store.hold import held
from gateway.store.schema import metadata
from gateway.store.sql import Connection

BATCH = 1000
LEFT = ("gateway_boot",)  # of gateways that don't run


class NotEmpty(StoreError):
    """There is a store already where one was to move in."""


def move(source: Path, target: Postgres) -> dict[str, int]:
    """Move all rows; how many of each table.

    Raises NotEmpty, StoreInUse while a gateway runs on the source, or StoreUnavailable.
    """
    with held(source, 0):
        bring_up_to_date(source)
        bring_up_to_date(target)
        with closing(open_for_reading(source)) as old, closing(open_for_writing(target)) as new:
            old.execute("BEGIN")
            with transaction(new):
                if new.execute("SELECT 1 FROM tenant LIMIT 1").fetchone() is not None:
                    raise NotEmpty(
                        f"The database {target} has tenants already: moving in takes an empty one."
                    )
                tables = [table for table in metadata.sorted_tables if table.name not in LEFT]
                return {table.name: _move(old, new, table) for table in tables}


def _move(old: sqlite3.Connection, new: Connection, table: Table) -> int:
    names = [column.name for column in table.columns]
    listed, values = ", ".join(names), ", ".join(f":{name}" for name in names)
    new.execute(f"ALTER TABLE {table.name} DISABLE TRIGGER USER")
    new.execute(f"DELETE FROM {table.name}")  # noqa: S608 - our own names, here and below
    moved = 0
    # In the order in which they were written: a correction comes after what it corrects.
    order = "" if table.dialect_options["sqlite"]["with_rowid"] is False else "ORDER BY rowid"
    found = old.execute(f"SELECT {listed} FROM {table.name} {order}")  # noqa: S608
    while rows := found.fetchmany(BATCH):
        new.executemany(f"INSERT INTO {table.name} ({listed}) VALUES ({values})", rows)  # noqa: S608
        moved += len(rows)
    new.execute(f"ALTER TABLE {table.name} ENABLE TRIGGER USER")
    new.execute(f"ANALYZE {table.name}")  # a server that knows no sizes reads whole tables
    return moved
