"""What the store's statements run on: SQLite's own connection, or `postgres.session` over psycopg.

Every statement is written once, in the SQL that both speak: values by `:name`, `billable = 1` and
no bare `billable`, INSERT … ON CONFLICT … DO UPDATE, RETURNING. A NULL whose type nothing else
tells needs a cast: `cast(:tenant_id AS TEXT) IS NULL`. Sums that could pass 64 bits in SQLite are
taken of two halves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

Values = Mapping[str, object]
Row = Sequence[object]  # values in the order in which a statement names them, each once

# The pieces of a statement; group 1 is the name of a value.
TOKEN = re.compile(
    r"'(?:[^']|'')*'"  # a text
    r'|"(?:[^"]|"")*"'  # a name
    r"|--[^\n]*"
    r"|::"  # a cast
    r"|:([A-Za-z_][A-Za-z0-9_]*)"
    r"|[^':\"\-%]+|."
)


@lru_cache(256)
def with_places(sql: str, place: str) -> str:
    """The statement with a place for each of its values, as rows have them."""
    return "".join(place if token[1] else token[0] for token in TOKEN.finditer(sql))


class Cursor(Protocol):
    """What a statement came to. Rows are tuples."""

    @property
    def rowcount(self) -> int:
        """How many rows a statement has changed."""

    @property
    def description(self) -> Any:
        """A sequence for each column, with its name first."""

    def fetchone(self) -> Any:
        """The next row; None after the last."""

    def fetchall(self) -> list[Any]:
        """All rows that are left."""

    def __iter__(self) -> Iterator[Any]:
        """The rows that are left."""


class Connection(Protocol):
    """Runs statements, one after another."""

    def execute(self, sql: str, values: Values = ..., /) -> Cursor:
        """Run one statement."""

    def executemany(self, sql: str, rows: Iterable[Row], /) -> Cursor:
        """Run it once for each of the rows."""

    def close(self) -> None:
        """Roll back what isn't committed, and let go."""


class Session(Connection, Protocol):
    """A connection to a server, which is told where transactions begin and end."""

    def begin(self) -> None:
        """Begin to write, once nobody else does."""

    def begin_reading(self) -> None:
        """See one snapshot from now on, until `commit`."""

    def commit(self) -> None:
        """Durable when this returns. Raises StoreUnavailable."""


def dicts(cursor: Cursor) -> list[dict[str, Any]]:
    """The rows, each by its columns' names."""
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
