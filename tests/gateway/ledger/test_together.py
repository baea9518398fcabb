"""What is written of many requests at once is what would be written of one after the other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from gateway.billing import Outcome
from gateway.budgets.bounds import Bound
from gateway.budgets.budgets import archive
from gateway.budgets.holds import OverBudget
from gateway.entering import Charged, Ended, Entered, Result, Step, write
from gateway.ledger import Ledger
from gateway.money.periods import GRACE_US, close as close_month
from gateway.prices import Terms, Usage
from gateway.record import OpenRecord, Settlement, closing_of, opened_of
from gateway.store.address import Database
from gateway.store.connection import begin, open_for_reading, open_for_writing, transaction
from gateway.store.errors import UniqueViolated
from gateway.store.sql import Connection
from gateway.store.writer import Writer
from tests.gateway.accounts import add_key, add_tenant
from tests.gateway.budgets.spending import HOLD, PRICES, assert_agrees, make, opening, used
from tests.gateway.records import AMOUNT, COMPLETED, OPENING, row

DAY = 86_400_000_000
SEPTEMBER, OCTOBER = 1_756_684_800_000_000, 1_759_276_800_000_000
NOW = OCTOBER + 40 * DAY  # September and October are closed by then, November runs
TABLES = (
    *("usage_record", "usage_line", "usage_rollup", "ledger_counter"),
    *("budget_window", "budget_hold", "budget_alert"),
)


def entering(record: OpenRecord) -> Entered:
    return Entered(record, opened_of(record, "boot_1"))


def ending(record: OpenRecord, settlement: Settlement) -> Ended:
    return Ended(record, closing_of(record, settlement, NOW))


def contents(db: Connection) -> dict[str, list[Any]]:
    return {name: sorted(map(repr, db.execute(f"SELECT * FROM {name}"))) for name in TABLES}


def one_after_the_other(db: Connection, steps: Sequence[Step]) -> list[Result]:
    return [write(db, [step], NOW)[0] for step in steps]


def together(db: Connection, steps: Sequence[Step]) -> list[Result]:
    return write(db, steps, NOW)


def told(results: Sequence[Result]) -> list[object]:
    return [one if isinstance(one, Charged | bool) else type(one) for one in results]


@pytest.mark.parametrize("seed", range(12))
def test_a_batch_is_worth_as_much_as_its_parts(path: Database, seed: int) -> None:
    chance = random.Random(seed)
    prepare(path, chance)
    done = []
    with closing(open_for_writing(path)) as db:
        before, steps = batches(db, chance)
        for way in (one_after_the_other, together):
            begin(db)
            write(db, before, NOW)
            results = way(db, steps)
            done.append((told(results), contents(db)))
            db.execute("ROLLBACK")
    assert done[0] == done[1]
    assert {type(result) for result in done[0][0]} >= {Charged, bool}


def prepare(path: Database, chance: random.Random) -> None:
    """Two tenants with budgets of all kinds, one of them archived; a month is closed."""
    with closing(open_for_writing(path)) as db, transaction(db):
        add_tenant(db, "globex", "tn_2")
        add_key(db, "key_2", "tn_1", b"\2")
        add_key(db, "key_3", "tn_2", b"\3")
        close_month(db, SEPTEMBER, OCTOBER + GRACE_US)
    for scope in (("tenant", "tn_1"), ("key", "key_1"), ("key", "key_2"), ("tenant", "tn_1")):
        make(
            path,
            OCTOBER,
            scope_kind=scope[0],
            scope_id=scope[1],
            period=chance.choice(["daily", "monthly", "total"]),
            limit_nano=chance.randrange(2, 12) * HOLD,
            model_id=chance.choice(["", "m", "other"]),
        )
    gone = make(path, OCTOBER, limit_nano=30 * HOLD)
    with closing(open_for_writing(path)) as db, transaction(db):
        archive(db, gone.budget.id, NOW - DAY)


def batches(db: Connection, chance: random.Random) -> tuple[list[Step], list[Step]]:
    """Requests that were entered before; and such as come, beside ends of both."""
    old = [record(chance, f"ur_old{n}", NOW - chance.randrange(3 * DAY)) for n in range(12)]
    begin(db)
    found = write(db, [entering(one) for one in old], NOW)
    db.execute("ROLLBACK")
    ready = [
        replace(one, charge_at=charged.charge_at)
        for one, charged in zip(old, found, strict=True)
        if isinstance(charged, Charged)
    ]
    new = [record(chance, f"ur_new{n}", NOW - chance.randrange(DAY)) for n in range(12)]
    ends = [ending(one, end(chance)) for one in [*ready, *new[:3], *ready[:2]]]
    return [entering(one) for one in ready], [*map(entering, new), *ends]


def record(chance: random.Random, id_: str, at: int) -> OpenRecord:
    tenant, key = chance.choice([("tn_1", "key_1"), ("tn_1", "key_2"), ("tn_2", "key_3")])
    currency = chance.choice(["USD", "USD", "USD", "EUR"])
    given = opening(
        request_id=f"req_{id_}",
        tenant_id=tenant,
        api_key_id=key,
        model_id=chance.choice(["m", "other"]),
        terms=Terms.of(replace(PRICES, currency=currency)),
        bound=Bound(HOLD - 200, 200, is_default=chance.random() < 0.5),
    )
    return OpenRecord(id_, given, at, at)


def end(chance: random.Random) -> Settlement:
    outcome = chance.choice([Outcome.COMPLETED, Outcome.COMPLETED, Outcome.UPSTREAM_ERROR])
    return replace(COMPLETED, outcome=outcome, usage=Usage(chance.randrange(1000), 0, 3))


async def gathered(writer: Writer, calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """What becomes of calls whose jobs are one batch."""
    entered, opened = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def gate(_: Connection) -> None:
        loop.call_soon_threadsafe(entered.set)
        asyncio.run_coroutine_threadsafe(opened.wait(), loop).result(30)

    writer.post(gate)
    await entered.wait()
    waiting = [asyncio.ensure_future(call()) for call in calls]
    await asyncio.sleep(0.01)
    opened.set()
    return await asyncio.gather(*waiting, return_exceptions=True)


async def test_who_is_refused_in_a_batch_leaves_no_trace(
    ledger: Ledger, writer: Writer, path: Database
) -> None:
    make(path, limit_nano=2 * HOLD)
    calls = [lambda: ledger.open(opening()) for _ in range(4)]
    results = await gathered(writer, calls)
    assert [type(one) for one in results] == [OpenRecord, OpenRecord, OverBudget, OverBudget]
    records = [one for one in results if isinstance(one, OpenRecord)]
    with closing(open_for_reading(path)) as db:
        assert db.execute("SELECT count(*) FROM usage_record").fetchone() == (2,)
    closed = await gathered(writer, [partial(ledger.settle, one, used(5)) for one in records])
    assert closed == [True, True]
    assert_agrees(path)


async def test_a_record_is_closed_once_in_a_batch_too(
    ledger: Ledger, writer: Writer, path: Database
) -> None:
    record = await ledger.open(OPENING)
    calls = [lambda: ledger.settle(record, COMPLETED) for _ in range(3)]
    assert await gathered(writer, calls) == [True, False, False]
    assert row(path, record.id)["amount_pico"] == AMOUNT
    with closing(open_for_reading(path)) as db:
        assert db.execute("SELECT seq FROM ledger_counter").fetchone() == (1,)
        assert db.execute("SELECT sum(requests) FROM usage_rollup").fetchone() == (1,)


async def test_one_bad_request_of_a_batch_fails_alone(
    ledger: Ledger, writer: Writer, path: Database
) -> None:
    done = await ledger.open(OPENING)
    calls: list[Callable[[], Any]] = [
        lambda: ledger.open(replace(OPENING, request_id="req_2")),
        lambda: ledger.open(OPENING),  # its id was entered before
        lambda: ledger.settle(done, COMPLETED),
    ]
    good, bad, closed = await gathered(writer, calls)
    assert (type(good), type(bad), closed) == (OpenRecord, UniqueViolated, True)
