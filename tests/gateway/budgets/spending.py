"""Budgets and requests for tests: a request holds 1000 nano at most, and costs what it's told."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import count
from typing import Any

from gateway.budgets.bounds import Bound
from gateway.budgets.budgets import Plan, create
from gateway.budgets.rows import Account
from gateway.budgets.spending import differences
from gateway.ledger import Ledger
from gateway.prices import Terms, TokenPrices, Usage
from gateway.record import Opening, Settlement
from gateway.store.address import Database
from gateway.store.connection import open_for_writing, transaction
from gateway.store.reader import read
from tests.gateway.records import COMPLETED, OPENING

HOLD = 1000
PRICES = TokenPrices("USD", input=1000, cached_input=1000, output=1000)  # a nano a token
PLAN = Plan("tn_1", "tenant", "tn_1", "total", "USD", limit_nano=10 * HOLD)
_numbers = count()


def opening(**changes: Any) -> Opening:
    """The next request's; each has an id of its own."""
    bound = Bound(HOLD - 100, 100, is_default=False)
    base = replace(
        OPENING, request_id=f"req_b{next(_numbers)}", terms=Terms.of(PRICES), bound=bound
    )
    return replace(base, **changes)


def make(path: Database, now_us: int = 0, **changes: Any) -> Account:
    """A budget, made as the command line makes one."""
    with closing(open_for_writing(path)) as db, transaction(db):
        return create(db, replace(PLAN, **changes), now_us)


def windows(path: Database) -> list[tuple[int, int, int]]:
    """(starts_at, spent, held) of all windows, in order."""
    query = (
        "SELECT starts_at, spent_nano, held_nano FROM budget_window ORDER BY budget_id, starts_at"
    )
    return read(path, lambda db: db.execute(query).fetchall())


def holds(path: Database) -> int:
    """How many there are."""
    found: int = read(path, lambda db: db.execute("SELECT count(*) FROM budget_hold").fetchone())[0]
    return found


def assert_agrees(path: Database) -> None:
    """What windows say is what records and holds say."""
    assert read(path, differences) == []


def raised(path: Database) -> list[tuple[int, int | None, int]]:
    """(percent, sent_at, attempts), in order."""
    query = "SELECT percent, sent_at, attempts FROM budget_alert ORDER BY starts_at, percent"
    return read(path, lambda db: db.execute(query).fetchall())


async def spend(ledger: Ledger, tokens: int) -> None:
    """A request that is billed so many nano-units."""
    record = await ledger.open(opening())
    await ledger.settle(record, used(tokens))


def used(tokens: int) -> Settlement:
    """A request's end, after so many tokens, a nano-unit each."""
    return replace(COMPLETED, usage=Usage(tokens, 0, 0))
