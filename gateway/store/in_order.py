"""A connection to SQLite that binds the values of many rows in their order.

Statements name their values (`sql.py`). For each value of each row, Python's module asks SQLite for
the name and looks it up, which takes as long as all else about it. So where one statement is run
for many rows, each name becomes a `?`, once, and the rows are tuples.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

from gateway.store.sql import with_places


class InOrder(sqlite3.Connection):
    """As its base; rows of `executemany` are in the order of the statement's names."""

    def executemany(self, sql: str, rows: Iterable[Any], /) -> sqlite3.Cursor:
        """Run it once for each of the rows."""
        return super().executemany(with_places(sql, "?"), rows)
