"""Months are closed once, in order, with nothing open in them; then nothing is charged to them."""

from __future__ import annotations

import datetime
from functools import partial

import pytest

from gateway.ledger import Ledger
from gateway.money.periods import GRACE_US, Period, PeriodError, close, periods
from gateway.store.address import Database
from gateway.store.reader import read
from gateway.usage.calendar import HOUR_US, month_name, us
from tests.gateway.money.books import enter, rows, write
from tests.gateway.records import COMPLETED, OPENING, FakeClock

SEPTEMBER, OCTOBER, NOVEMBER = (
    us(datetime.datetime(2026, month, 1, tzinfo=datetime.UTC)) for month in (9, 10, 11)
)


def closed(path: Database, month: int, now_us: int, grace_us: int = GRACE_US) -> Period:
    return write(path, partial(close, starts_at=month, now_us=now_us, grace_us=grace_us))


async def test_a_closed_month_has_the_number_of_its_last_record(
    ledger: Ledger, clock: FakeClock, path: Database
) -> None:
    clock.us = OCTOBER + 1
    await enter(ledger)
    clock.us = NOVEMBER + 1
    await enter(ledger)
    done = closed(path, OCTOBER, NOVEMBER + GRACE_US)
    assert (done.closed_at, done.seq_bound) == (NOVEMBER + GRACE_US, 2)
    await enter(ledger)
    assert closed(path, OCTOBER, NOVEMBER + 2 * GRACE_US) == done, "it was closed already"
    found = read(path, lambda db: periods(db, NOVEMBER + GRACE_US))
    assert [(month_name(one.starts_at), one.is_closed) for one in found] == [
        ("2026-10", True),
        ("2026-11", False),
    ]


async def test_a_month_is_not_closed_too_early(path: Database) -> None:
    with pytest.raises(PeriodError, match="48 hours after its end"):
        closed(path, OCTOBER, NOVEMBER + GRACE_US - 1)
    assert closed(path, OCTOBER, NOVEMBER, grace_us=0).is_closed


async def test_a_month_with_an_open_record_is_not_closed(
    ledger: Ledger, clock: FakeClock, path: Database
) -> None:
    clock.us = NOVEMBER - 1
    record = await ledger.open(OPENING)
    with pytest.raises(PeriodError, match="1 of 2026-10's records are still open"):
        closed(path, OCTOBER, NOVEMBER + GRACE_US)
    clock.us = NOVEMBER + 5  # it ran over the month's end, and is charged to its start
    await ledger.settle(record, COMPLETED)
    assert closed(path, OCTOBER, NOVEMBER + GRACE_US).seq_bound == 1
    assert rows(path, "SELECT hour_at FROM usage_rollup") == [(NOVEMBER - HOUR_US,)]


async def test_earlier_months_with_charges_are_closed_first(
    ledger: Ledger, clock: FakeClock, path: Database
) -> None:
    clock.us = SEPTEMBER
    await enter(ledger)
    with pytest.raises(PeriodError, match="2026-09 has charges and is open"):
        closed(path, OCTOBER, NOVEMBER + GRACE_US)
    closed(path, SEPTEMBER, NOVEMBER)
    assert closed(path, OCTOBER, NOVEMBER + GRACE_US).is_closed


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE billing_period SET status = 'open', closed_at = NULL",
        "UPDATE billing_period SET seq_bound = 7",
        "DELETE FROM billing_period",
    ],
)
async def test_a_closed_month_is_never_opened_again(path: Database, change: str) -> None:
    closed(path, OCTOBER, NOVEMBER + GRACE_US)
    with pytest.raises(Exception, match="closed"):
        write(path, lambda db: db.execute(change))
