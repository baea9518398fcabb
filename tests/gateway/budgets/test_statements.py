"""What budgets cost a request, in statements."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from gateway.ledger import Ledger
from gateway.store.address import Database
from gateway.store.connection import open_for_writing
from gateway.store.sql import Connection, Cursor
from gateway.store.writer import Writer
from tests.gateway.budgets.spending import (
    make,
    opening,
    used,
)
from tests.gateway.records import FakeClock


class Counting:
    """A connection that counts its statements, as the jobs of a request see it."""

    def __init__(self, db: Connection) -> None:
        self._db = db
        self.statements = 0

    def execute(self, statement: str, values: Any = ()) -> Cursor:
        self.statements += 1
        return self._db.execute(statement, values)

    def executemany(self, statement: str, values: Any) -> Cursor:
        self.statements += 1
        return self._db.executemany(statement, values)


@dataclass
class CountingWriter:
    """Runs jobs at once, and keeps how many statements each took."""

    db: Connection
    counts: list[int] = field(default_factory=list)

    async def run(self, job: Any) -> Any:
        counting = Counting(self.db)
        try:
            return job(counting)
        finally:
            self.counts.append(counting.statements)


@pytest.mark.parametrize(
    ("budgets", "opens", "settles"),
    [
        (0, 1, 4),  # enter it; its number, its lines, its end, the hour's sums
        (1, 1 + 3, 4 + 3),  # which apply, held in each, noted; taken back, which apply, booked
        (3, 1 + 7, 4 + 5),
    ],
)
async def test_what_requests_cost_in_statements(
    path: Database, clock: FakeClock, budgets: int, opens: int, settles: int
) -> None:
    for _ in range(budgets):
        make(path)
    with closing(open_for_writing(path)) as db:
        writer = CountingWriter(db)
        ledger = Ledger(cast("Writer", writer), clock, "boot_1")
        await ledger.settle(await ledger.open(opening()), used(5))
    assert writer.counts == [opens, settles]
