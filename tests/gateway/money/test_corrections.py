"""What was wrong with a record is made good by another; the record itself never changes."""

from __future__ import annotations

from functools import partial

import pytest

from gateway.billing import Outcome
from gateway.ledger import Ledger
from gateway.money.corrections import VOID, Correction, CorrectionError, Usage, correct
from gateway.money.periods import close
from gateway.money.reconcile import differences
from gateway.prices import Priced, Terms, TokenPrices
from gateway.record import Settlement
from gateway.store.address import Database
from gateway.store.reader import read
from tests.gateway.money.books import enter, rows, write
from tests.gateway.money.test_periods import NOVEMBER, SEPTEMBER
from tests.gateway.records import AMOUNT, COMPLETED, OPENING, FakeClock, row

SUMS = (
    "SELECT requests, input_tokens, cached_input_tokens, output_tokens, amount_pico"
    " FROM usage_rollup"
)


def corrected(
    path: Database, record_id: str, should_be: Usage, reason: str = "r", now_us: int = 9_000
) -> Correction:
    job = partial(correct, record_id=record_id, should_be=should_be, reason=reason, now_us=now_us)
    return write(path, job)


async def test_a_void_record_costs_nothing_and_stays_as_it_was(
    ledger: Ledger, path: Database
) -> None:
    record_id = await enter(ledger)
    before = row(path, record_id)
    done = corrected(path, record_id, VOID, "a test run of ours")
    assert row(path, record_id) == before
    found = row(path, done.id)
    assert (found["kind"], found["corrects"], found["reason"]) == (
        "correction",
        record_id,
        "a test run of ours",
    )
    assert (found["state"], found["amount_pico"], found["billable"]) == ("settled", -AMOUNT, 1)
    assert (found["bill_reason"], found["usage_source"]) == ("correction", "operator")
    assert (found["charge_at"], found["settled_at"], found["seq"]) == (1_000, 9_000, 2)
    assert (found["input_tokens"], found["cached_input_tokens"], found["output_tokens"]) == (
        -7,
        -5,
        -3,
    )
    lines = (
        f"SELECT token_class, quantity, amount_pico FROM usage_line WHERE record_id = '{done.id}'"
    )
    assert rows(path, f"{lines} ORDER BY line_no") == [
        ("input", -2, -20),
        ("cached_input", -5, -5),
        ("output", -3, -300),
    ]
    assert rows(path, SUMS) == [(1, 0, 0, 0, 0)], "it was a request all the same"


async def test_counts_that_are_not_given_stay(ledger: Ledger, path: Database) -> None:
    record_id = await enter(ledger)
    done = corrected(path, record_id, Usage(output_tokens=5))
    assert (done.amount_pico, done.amount) == (200, "0.0000000002")
    again = corrected(path, record_id, Usage(cached_input_tokens=0))
    assert again.amount_pico == 5 * 10 - 5 * 1
    assert corrected(path, record_id, VOID).amount_pico == -(AMOUNT + 200 + 45)
    assert rows(path, SUMS) == [(1, 0, 0, 0, 0)]
    assert not read(path, lambda db: list(differences(db)))


async def test_what_was_not_billed_can_be(ledger: Ledger, path: Database) -> None:
    failed = Settlement(**{**{f: getattr(COMPLETED, f) for f in COMPLETED.__slots__},
                           "outcome": Outcome.TIMEOUT})  # fmt: skip
    done = corrected(path, await enter(ledger, failed), Usage(10, 0, 1))
    assert done.amount_pico == 10 * 10 + 100


async def test_a_correction_has_the_prices_of_its_record(ledger: Ledger, path: Database) -> None:
    terms = Terms(Priced(OPENING.prices, "pv_1"), Priced(TokenPrices("USD", 20, 2, 200), "pv_2"))
    done = corrected(path, await enter(ledger, terms=terms), VOID)
    found = row(path, done.id)
    assert (found["price_version_id"], found["list_price_version_id"]) == ("pv_1", "pv_2")
    assert (found["amount_pico"], found["list_amount_pico"]) == (-AMOUNT, -2 * AMOUNT)


async def test_what_belongs_to_a_closed_month_is_made_good_in_the_open_one(
    ledger: Ledger, clock: FakeClock, path: Database
) -> None:
    clock.us = SEPTEMBER + 5
    record_id = await enter(ledger)
    now = NOVEMBER
    write(path, lambda db: close(db, SEPTEMBER, now))
    done = corrected(path, record_id, VOID, now_us=now)
    assert (done.is_late, done.charge_at) == (True, now)
    months = "SELECT hour_at, amount_pico FROM usage_rollup ORDER BY hour_at"
    assert [amount for _, amount in rows(path, months)] == [AMOUNT, -AMOUNT]
    assert not read(path, lambda db: list(differences(db)))


async def test_what_cannot_be_corrected(ledger: Ledger, path: Database) -> None:
    record_id = await enter(ledger)
    done = corrected(path, record_id, Usage(output_tokens=1))
    running = await ledger.open(OPENING)
    wrong = [
        ("ur_nobody", VOID, "r", "no record"),
        (done.id, VOID, "r", "is a correction"),
        (running.id, VOID, "r", "is open"),
        (record_id, Usage(output_tokens=1), "r", "nothing is to be corrected"),
        (record_id, Usage(input_tokens=1, cached_input_tokens=2), "r", "part of the input"),
        (record_id, Usage(output_tokens=-1), "r", "between 0"),
        (record_id, Usage(output_tokens=2**31), "r", "between 0"),
        (record_id, VOID, " ", "needs a reason"),
        (record_id, VOID, "x" * 501, "needs a reason"),
    ]
    for which, should_be, reason, says in wrong:
        with pytest.raises(CorrectionError, match=says):
            corrected(path, which, should_be, reason)
    assert len(rows(path, "SELECT 1 FROM usage_record WHERE kind = 'correction'")) == 1
