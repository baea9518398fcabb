"""Which window a record counts in, and which budgets: zones, clocks, new ones and old ones."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from gateway.budgets.budgets import archive, set_limit
from gateway.budgets.holds import OverBudget
from gateway.ledger import Ledger
from gateway.store.address import Database
from gateway.store.connection import open_for_writing, transaction
from tests.gateway.budgets.spending import (
    HOLD,
    assert_agrees,
    make,
    opening,
    used,
    windows,
)
from tests.gateway.records import FakeClock

DAY = 86_400_000_000


async def test_it_counts_in_the_window_in_which_it_began(
    ledger: Ledger, clock: FakeClock, path: Database
) -> None:
    clock.us = 10 * DAY - 1
    make(path, clock.us, period="daily", limit_nano=HOLD)
    over_midnight = await ledger.open(opening())
    clock.us = 10 * DAY
    next_day = await ledger.open(opening())  # a new window, with all of its limit
    await ledger.settle(over_midnight, used(7))
    await ledger.settle(next_day, used(9))
    assert windows(path) == [(9 * DAY, 7, 0), (10 * DAY, 9, 0)]
    assert_agrees(path)


async def test_a_changed_zone_counts_from_the_next_window_on(
    ledger: Ledger, clock: FakeClock, path: Database
) -> None:
    clock.us = 10 * DAY
    make(path, clock.us, period="daily", limit_nano=3 * HOLD)
    with closing(open_for_writing(path)) as db, transaction(db):
        db.execute("UPDATE tenant SET timezone = 'Asia/Tokyo'")  # its days begin at 15:00Z
    hour = DAY // 24
    for clock.us in (10 * DAY + 20 * hour, 11 * DAY + hour, 11 * DAY + 20 * hour):
        await ledger.open(opening())
    with closing(open_for_writing(path)) as db:
        found = db.execute("SELECT starts_at, ends_at FROM budget_window ORDER BY 1").fetchall()
    first, short, whole = found
    assert first == (10 * DAY, 11 * DAY)
    assert short == (11 * DAY, 11 * DAY + 15 * hour)
    assert whole == (11 * DAY + 15 * hour, 12 * DAY + 15 * hour)
    assert_agrees(path)


async def test_a_zone_that_this_machine_lost_is_taken_for_utc(
    ledger: Ledger, clock: FakeClock, path: Database
) -> None:
    clock.us = 10 * DAY
    make(path, clock.us, period="daily")
    with closing(open_for_writing(path)) as db, transaction(db):
        db.execute("UPDATE tenant SET timezone = 'Mars/Olympus'")
    clock.us = 11 * DAY
    await ledger.open(opening())
    assert [starts for starts, _, _ in windows(path)] == [10 * DAY, 11 * DAY]


async def test_a_replica_whose_clock_lags_opens_the_window_before(
    ledger: Ledger, clock: FakeClock, path: Database
) -> None:
    clock.us = 10 * DAY
    make(path, clock.us, period="daily")
    for clock.us in (13 * DAY, 12 * DAY - 1):
        await ledger.open(opening())
    assert [starts for starts, _, _ in windows(path)] == [10 * DAY, 11 * DAY, 13 * DAY]


async def test_what_the_day_has_seen_counts_in_a_new_budget(
    ledger: Ledger, clock: FakeClock, path: Database
) -> None:
    clock.us = 10 * DAY
    before = await ledger.open(opening())
    await ledger.settle(before, used(50))
    runs = await ledger.open(opening())
    from_yesterday = replace(runs, id=runs.id)
    clock.us += 5
    make(path, clock.us, period="daily")
    make(path, clock.us, period="total")
    await ledger.settle(from_yesterday, used(30))  # without a hold, and yet it was spent today
    assert windows(path) == [(10 * DAY, 80, 0), (10 * DAY + 5, 0, 0)]
    assert_agrees(path)


async def test_a_budget_that_was_archived_holds_nobody(
    ledger: Ledger, clock: FakeClock, path: Database
) -> None:
    account = make(path, clock.us, limit_nano=HOLD)
    clock.us += 1
    runs = await ledger.open(opening())
    clock.us += 1
    with closing(open_for_writing(path)) as db, transaction(db):
        archive(db, account.budget.id, clock.us)
    later = await ledger.open(opening())
    await ledger.settle(runs, used(3))
    await ledger.settle(later, used(4))
    assert windows(path) == [(1000, 3, 0)]
    assert_agrees(path)


async def test_a_limit_may_be_changed_while_requests_run(ledger: Ledger, path: Database) -> None:
    account = make(path, limit_nano=HOLD)
    runs = await ledger.open(opening())

    def change(limit_nano: int) -> None:
        with closing(open_for_writing(path)) as db, transaction(db):
            set_limit(db, account.budget.id, limit_nano, 5)

    change(2 * HOLD)
    await ledger.settle(await ledger.open(opening()), used(1))
    change(1)  # less than what is held: that stays, and nothing more fits
    with pytest.raises(OverBudget):
        await ledger.open(opening())
    await ledger.settle(runs, used(HOLD))
    assert windows(path) == [(0, HOLD + 1, 0)]
    assert_agrees(path)
