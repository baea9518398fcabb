"""What budgets cost a request, in statements."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from gateway.ledger import Ledger
from gateway.store.address import Database
from gateway.store.connection import open_for_writing
from gateway.store.sql import Connection, Cursor
from gateway.store.writer import Joint, Writer
from tests.gateway.budgets.spending import (
    HOLD,
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


@dataclass
class BatchingWriter:
    """Does so many jobs at a time together, and keeps how many statements that took."""

    db: Connection
    size: int
    waiting: list[tuple[Joint[Any, Any], asyncio.Future[Any]]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    async def run(self, job: Joint[Any, Any]) -> Any:
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((job, future))
        if len(self.waiting) == self.size:
            counting = Counting(self.db)
            results = job.work(
                cast("Connection", counting), [each.subject for each, _ in self.waiting]
            )
            for (_, each), result in zip(self.waiting, results, strict=True):
                each.set_result(result)
            self.waiting.clear()
            self.counts.append(counting.statements)
        return await future


@pytest.mark.parametrize(
    ("budgets", "opens", "settles"),
    [
        (0, 3, 6),  # months, budgets, itself; is it open, number, end, sums, holds, budgets
        (1, 3 + 2, 6 + 1),  # noted, held in each; booked in each
        (3, 3 + 4, 6 + 3),
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


@pytest.mark.parametrize("requests", [2, 16])
async def test_a_batch_costs_what_one_of_them_costs(
    path: Database, clock: FakeClock, requests: int
) -> None:
    make(path, limit_nano=100 * HOLD)
    with closing(open_for_writing(path)) as db:
        writer = BatchingWriter(db, requests)
        ledger = Ledger(cast("Writer", writer), clock, "boot_1")
        opened = await asyncio.gather(*(ledger.open(opening()) for _ in range(requests)))
        await asyncio.gather(*(ledger.settle(one, used(5)) for one in opened))
    assert writer.counts == [3 + 2, 6 + 1]
