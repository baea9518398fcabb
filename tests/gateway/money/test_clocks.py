"""A clock that is set back, and a month's end, while requests run: the books stay right."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gateway.ledger import Ledger
from gateway.money.checkpoints import key_of
from gateway.money.periods import GRACE_US, close
from gateway.money.reconcile import differences
from gateway.money.sealing import Sealer
from gateway.money.verifying import Verified, verify
from gateway.money.versions import PriceVersion, Timeline, Wanted, plan
from gateway.prices import TokenPrices
from gateway.store.address import Database
from gateway.store.reader import read
from gateway.usage.calendar import HOUR_US
from tests.gateway.money.books import enter, rows, write
from tests.gateway.money.test_periods import NOVEMBER, OCTOBER
from tests.gateway.records import COMPLETED, OPENING, FakeClock

TENTH_S = 100_000


def agree(path: Database) -> bool:
    while write(path, Sealer().seal):
        pass
    key = key_of(bytes(32)).public_key()
    wrong = read(path, lambda db: [*differences(db), *verify(db, key, (), Verified())])
    return not wrong


async def test_a_clock_that_is_set_back_while_requests_run(
    ledger: Ledger, clock: FakeClock, path: Database
) -> None:
    clock.us = NOVEMBER + HOUR_US
    running = await ledger.open(OPENING)
    clock.us -= HOUR_US + TENTH_S  # into October again
    first = await enter(ledger)
    assert await ledger.settle(running, COMPLETED)
    found = rows(path, "SELECT id, seq, charge_at FROM usage_record ORDER BY seq")
    assert found == [(first, 1, NOVEMBER - TENTH_S), (running.id, 2, NOVEMBER + HOUR_US)]
    assert agree(path)


async def test_a_clock_that_is_set_back_into_a_closed_month_charges_the_open_one(
    ledger: Ledger, clock: FakeClock, path: Database
) -> None:
    clock.us = NOVEMBER - TENTH_S
    running = await ledger.open(OPENING)  # at 23:59:59.9, and it ends in the next month
    clock.us = NOVEMBER + GRACE_US
    await ledger.settle(running, COMPLETED)
    period = write(path, partial(close, starts_at=OCTOBER, now_us=NOVEMBER + GRACE_US))
    clock.us = NOVEMBER - TENTH_S
    late = await ledger.open(replace(OPENING, request_id="req_late"))
    await ledger.settle(late, COMPLETED)
    assert late.charge_at == NOVEMBER
    charged = rows(path, "SELECT charge_at FROM usage_record ORDER BY seq")
    assert charged == [(NOVEMBER - TENTH_S,), (NOVEMBER,)]
    assert period.seq_bound == 1
    assert agree(path)


def test_a_deploy_after_the_clock_was_set_back_has_its_price_in_force() -> None:
    """And what was to come, by that clock, is no announcement that is taken back."""
    old, new = (TokenPrices("USD", price, 0, price) for price in (1, 2))
    now = 10 * HOUR_US
    known = Timeline(
        PriceVersion(f"v{at}", "m", None, prices, at, at, "first")
        for prices, at in ((old, 0), (new, now))
    )
    found = plan([Wanted(new, None, "p")], known, now - HOUR_US)
    assert not found.faults
    assert [(one.prices, one.effective_from) for one in found.additions] == [(new, now - HOUR_US)]
