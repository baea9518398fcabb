"""Alerts: raised once a window, and sent until somebody has accepted them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.budgets.holds import OverBudget
from gateway.ledger import Ledger
from gateway.prices import Usage
from gateway.store.address import Database
from tests.gateway.budgets.spending import HOLD, make, opening, raised, spend
from tests.gateway.records import COMPLETED, FakeClock

US = 1_000_000
DAY_US = 86_400 * US


async def test_each_percentage_is_raised_once_a_window(
    ledger: Ledger, clock: FakeClock, path: Database
) -> None:
    make(path, clock.us, limit_nano=2000, period="daily", alerts=(50, 80))
    await spend(ledger, 999)
    assert raised(path) == []
    await spend(ledger, 1)
    assert [percent for percent, _, _ in raised(path)] == [50]
    await spend(ledger, 600)
    assert [percent for percent, _, _ in raised(path)] == [50, 80]
    clock.us += DAY_US
    await spend(ledger, 1000)
    assert [percent for percent, _, _ in raised(path)] == [50, 80, 50]


async def test_one_request_may_reach_several(ledger: Ledger, path: Database) -> None:
    make(path, limit_nano=HOLD, alerts=(1, 50, 99, 100))
    await spend(ledger, 990)
    assert [percent for percent, _, _ in raised(path)] == [1, 50, 99]


async def test_a_budget_is_spent_when_a_request_is_refused_for_it(
    ledger: Ledger, path: Database
) -> None:
    """Spending itself stops short of the limit: else nobody would be told."""
    make(path, limit_nano=1050, alerts=(100,))
    running = await ledger.open(opening())
    for _ in range(3):
        with pytest.raises(OverBudget):
            await ledger.open(opening())
    await ledger.flush()
    assert raised(path) == [], "it was held, not spent"
    await ledger.settle(running, replace(COMPLETED, usage=Usage(950, 0, 0)))
    for _ in range(3):
        with pytest.raises(OverBudget):
            await ledger.open(opening())
    await ledger.flush()
    assert [percent for percent, _, _ in raised(path)] == [100]


@pytest.mark.parametrize(("limit", "spent"), [(1, 0), (999, 0), (1500, 800), (1200, 1000)])
async def test_a_budget_is_not_spent_because_a_request_is_large(
    ledger: Ledger, path: Database, limit: int, spent: int
) -> None:
    make(path, limit_nano=limit, alerts=(100,))
    if spent:
        await spend(ledger, spent)
    with pytest.raises(OverBudget):
        await ledger.open(opening())
    await ledger.flush()
    assert raised(path) == []


async def test_a_new_budget_that_is_spent_already_tells_so(
    ledger: Ledger, clock: FakeClock, path: Database
) -> None:
    await spend(ledger, 700)
    make(path, clock.us, limit_nano=1000, period="daily", alerts=(50, 70, 80))
    assert [percent for percent, _, _ in raised(path)] == [50, 70]
