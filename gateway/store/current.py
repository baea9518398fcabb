"""Whether a database has this version's schema: asked at each start and by each command, so it
loads no library; what migrates does.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

from gateway.store.address import Database
from gateway.store.connection import open_for_reading
from gateway.store.errors import StoreUnavailable

HEAD = "0004"  # the newest of the migrations


def bring_up_to_date(database: Database) -> None:
    """Make the database or migrate it, if need be. Raises as `migrate` does."""
    if not is_current(database):
        from gateway.store.migrate import migrate

        migrate(database)


def is_current(database: Database) -> bool:
    """Whether nothing needs to be done."""
    try:
        with closing(open_for_reading(database)) as db:
            found = db.execute("SELECT version_num FROM alembic_version").fetchall()
    except (sqlite3.Error, StoreUnavailable):
        return False  # the migration says what is wrong
    return found == [(HEAD,)]
