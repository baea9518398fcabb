"""A connection to SQLite that binds the values of many rows in their order.

Statements name their values (`sql.py`). For each value of each row, Python's module asks SQLite for
the name and looks it up, which takes as long as all else about it. So where one statement is run
for many rows, each name becomes a `?`, once.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any

from gateway.store.sql import TOKEN

Row = Mapping[str, Any]


class InOrder(sqlite3.Connection):
    """As its base; rows of `executemany` are mappings."""

    def executemany(self, sql: str, values: Iterable[Any], /) -> sqlite3.Cursor:
        """Run it once for each of the values."""
        text, in_order = _in_order(sql)
        return super().executemany(text, map(in_order, values))


@lru_cache(64)
def _in_order(sql: str) -> tuple[str, Callable[[Row], tuple[Any, ...]]]:
    """The statement without names, and what puts a row's values into their order."""
    names: list[str] = []

    def piece(token: re.Match[str]) -> str:
        if not token[1]:
            return token[0]
        names.append(token[1])
        return "?"

    text = "".join(map(piece, TOKEN.finditer(sql)))
    if len(names) == 1:
        (name,) = names
        return text, lambda row: (row[name],)
    return text, itemgetter(*names)
