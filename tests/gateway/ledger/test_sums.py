"""What a settlement writes beside its lines: list amounts, the hour's sums, the order."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.billing import Outcome
from gateway.ledger import Ledger
from gateway.prices import MAX_PRICE_PICO, Priced, Terms, TokenPrices, Usage
from gateway.store.connection import open_for_reading, open_for_writing
from tests.gateway.records import AMOUNT, COMPLETED, OPENING, FakeClock, row

HOUR_US = 3_600_000_000
LIST = TokenPrices("USD", 20, 2, 200)
OTHERS = TokenPrices("EUR", 20, 2, 200)


def read(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(open_for_reading(path)) as db:
        return db.execute(sql).fetchall()


async def settle(ledger: Ledger, number: int, **changes: Any) -> str:
    record = await ledger.open(replace(OPENING, request_id=f"req_{number}", **changes))
    await ledger.settle(record, COMPLETED)
    return record.id


async def test_lines_and_record_have_both_prices_and_their_versions(
    ledger: Ledger, path: Path
) -> None:
    terms = Terms(Priced(OPENING.prices, "pv_mine"), Priced(LIST, "pv_list"))
    found = row(path, await settle(ledger, 1, terms=terms))
    assert (found["price_version_id"], found["list_price_version_id"]) == ("pv_mine", "pv_list")
    assert (found["amount_pico"], found["list_amount_pico"]) == (AMOUNT, 2 * AMOUNT)
    lines = read(path, "SELECT list_price_pico, list_amount_pico FROM usage_line ORDER BY line_no")
    assert lines == [(20, 40), (2, 10), (200, 600)]


async def test_a_list_in_another_currency_is_not_compared(ledger: Ledger, path: Path) -> None:
    terms = Terms(Priced(OPENING.prices, "pv_mine"), Priced(OTHERS, "pv_list"))
    found = row(path, await settle(ledger, 1, terms=terms))
    assert found["list_price_version_id"] == "pv_list"
    assert found["list_input_price_pico"] is found["list_amount_pico"] is None
    assert read(path, "SELECT DISTINCT list_price_pico FROM usage_line") == [(None,)]
    assert read(path, "SELECT list_amount_pico FROM usage_rollup") == [(AMOUNT,)]


async def test_an_hours_sums_grow_with_each_billed_record_and_no_other(
    ledger: Ledger, clock: FakeClock, path: Path
) -> None:
    clock.us = HOUR_US + 7
    await settle(ledger, 1)
    await settle(ledger, 2)
    free = await ledger.open(replace(OPENING, request_id="req_3"))
    await ledger.settle(free, replace(COMPLETED, outcome=Outcome.UPSTREAM_ERROR))
    clock.us = 2 * HOUR_US
    await settle(ledger, 4)
    sums = (
        "SELECT hour_at, tenant_id, model_id, api_key_id, project_id, currency, requests,"
        " input_tokens, cached_input_tokens, output_tokens, amount_pico FROM usage_rollup"
        " ORDER BY hour_at"
    )
    key = ("tn_1", "m", "key_1", "", "USD")
    assert read(path, sums) == [
        (HOUR_US, *key, 2, 14, 10, 6, 2 * AMOUNT),
        (2 * HOUR_US, *key, 1, 7, 5, 3, AMOUNT),
    ]


async def test_a_request_billed_for_nothing_is_counted(ledger: Ledger, path: Path) -> None:
    record = await ledger.open(OPENING)
    await ledger.settle(record, replace(COMPLETED, usage=Usage(0, 0, 0)))
    assert read(path, "SELECT requests, amount_pico FROM usage_rollup") == [(1, 0)]
    assert row(path, record.id)["billable"] == 1


async def test_an_hour_that_costs_more_than_64_bits_hold_has_several_rows(
    ledger: Ledger, path: Path
) -> None:
    dear = Terms.of(TokenPrices("VND", MAX_PRICE_PICO, 0, 0))
    for number in range(3):
        record = await ledger.open(replace(OPENING, request_id=f"req_{number}", terms=dear))
        await ledger.settle(record, replace(COMPLETED, usage=Usage(9_000_000, 0, 0)))
    found = read(path, "SELECT hour_at, amount_pico FROM usage_rollup ORDER BY hour_at")
    assert found == [(at, 9_000_000 * MAX_PRICE_PICO) for at in range(3)]


async def test_records_are_numbered_as_they_are_closed_without_a_gap(
    ledger: Ledger, path: Path
) -> None:
    records = [await ledger.open(replace(OPENING, request_id=f"req_{n}")) for n in range(20)]
    await asyncio.gather(*(ledger.settle(r, COMPLETED) for r in [*records[:9], *records[:9]]))
    await ledger.close_left_open()  # none: all of them are inside
    await asyncio.gather(*(ledger.settle(r, COMPLETED) for r in records))
    assert read(path, "SELECT seq FROM usage_record ORDER BY seq") == [(n,) for n in range(1, 21)]
    assert read(path, "SELECT seq FROM ledger_counter") == [(20,)]


async def test_what_comes_after_a_month_was_closed_is_charged_to_the_next(
    ledger: Ledger, clock: FakeClock, path: Path
) -> None:
    """The clock of a machine may be set back."""
    with closing(open_for_writing(path)) as db:
        db.execute("INSERT INTO billing_period VALUES (0, 2678400000000, 'closed', 3, 0, 3, 3)")
    clock.us = 5
    found = row(path, await settle(ledger, 1))
    assert (found["opened_at"], found["charge_at"]) == (5, 2678400000000)
    assert read(path, "SELECT hour_at FROM usage_rollup") == [(2678400000000,)]
