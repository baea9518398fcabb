"""The ledger: entered before the work, settled once after it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.billing import Outcome
from gateway.ledger import Ledger
from gateway.prices import MAX_PRICE_PICO, Terms, TokenPrices, Usage
from gateway.store.address import Database
from gateway.store.errors import IntegrityError
from gateway.store.writer import Writer
from tests.gateway.records import AMOUNT, COMPLETED, OPENING, FakeClock, line_rows, row


async def test_an_open_record_is_in_the_database_with_its_prices_and_no_counts(
    ledger: Ledger, path: Database
) -> None:
    record = await ledger.open(OPENING)
    found = row(path, record.id)
    assert found["state"] == "open"
    assert (found["opened_at"], found["charge_at"], found["boot_id"]) == (1_000, 1_000, "boot_1")
    assert (found["input_price_pico"], found["output_price_pico"]) == (10, 100)
    assert found["input_tokens"] is found["amount_pico"] is found["billable"] is None


async def test_a_settled_record_holds_counts_lines_and_their_sum(
    ledger: Ledger, clock: FakeClock, path: Database
) -> None:
    record = await ledger.open(OPENING)
    clock.us = 2_000
    assert await ledger.settle(record, COMPLETED)
    found = row(path, record.id)
    assert (found["state"], found["billable"], found["amount_pico"]) == ("settled", 1, AMOUNT)
    assert (found["charge_at"], found["ended_at"], found["settled_at"]) == (1_000, 2_000, 2_000)
    assert (found["first_token_at"], found["host_id"]) == (1_500, "host_1")
    assert line_rows(path) == [
        (record.id, 1, "m/input-tokens", "input", 2, 10, 20),
        (record.id, 2, "m/cached_input-tokens", "cached_input", 5, 1, 5),
        (record.id, 3, "m/output-tokens", "output", 3, 100, 300),
    ]


async def test_of_64_concurrent_settlements_exactly_one_counts(
    ledger: Ledger, path: Database
) -> None:
    record = await ledger.open(OPENING)
    settled = await asyncio.gather(*(ledger.settle(record, COMPLETED) for _ in range(64)))
    assert sorted(settled) == [False] * 63 + [True]
    assert len(line_rows(path)) == 3


async def test_a_request_id_is_entered_once(ledger: Ledger) -> None:
    await ledger.open(OPENING)
    with pytest.raises(IntegrityError, match="request_id"):
        await ledger.open(OPENING)


async def test_what_is_not_billed_keeps_its_counts_and_has_no_lines(
    ledger: Ledger, path: Database
) -> None:
    record = await ledger.open(OPENING)
    assert await ledger.settle(record, replace(COMPLETED, outcome=Outcome.INTEGRITY_ABORT))
    found = row(path, record.id)
    assert (found["billable"], found["bill_reason"]) == (0, "integrity_abort")
    assert (found["amount_pico"], found["input_tokens"], found["output_tokens"]) == (0, 7, 3)
    assert line_rows(path) == []


async def test_missing_usage_is_not_zero(ledger: Ledger, path: Database) -> None:
    record = await ledger.open(OPENING)
    assert await ledger.settle(record, replace(COMPLETED, usage=None))
    found = row(path, record.id)
    assert (found["billable"], found["bill_reason"]) == (0, "usage_missing")
    assert (found["input_tokens"], found["usage_source"]) == (None, "none")


async def test_an_amount_past_64_bits_is_settled_unbilled_and_says_so(
    ledger: Ledger, path: Database
) -> None:
    prices = TokenPrices("USD", MAX_PRICE_PICO, 0, 0)
    record = await ledger.open(replace(OPENING, terms=Terms.of(prices)))
    assert await ledger.settle(record, replace(COMPLETED, usage=Usage(10**9, 0, 0)))
    found = row(path, record.id)
    assert (found["bill_reason"], found["amount_pico"]) == ("amount_out_of_range", 0)


async def test_orphans_are_what_other_boots_left_open(
    ledger: Ledger, writer: Writer, clock: FakeClock, path: Database
) -> None:
    left = await ledger.open(OPENING)
    done = await ledger.open(replace(OPENING, request_id="req_2"))
    await ledger.settle(done, COMPLETED)
    reborn = Ledger(writer, clock, "boot_2")
    mine = await reborn.open(replace(OPENING, request_id="req_3"))
    assert await reborn.reap_orphans(lambda boot: False) == 1
    assert await reborn.reap_orphans(lambda boot: False) == 0
    states = [row(path, record.id)["state"] for record in (left, done, mine)]
    assert states == ["orphaned", "settled", "open"]
    found = row(path, left.id)
    assert (found["outcome"], found["billable"], found["amount_pico"]) == ("crashed", 0, 0)


async def test_a_boot_that_lives_is_spared(
    ledger: Ledger, writer: Writer, clock: FakeClock, path: Database
) -> None:
    """Two workers of one gateway share the store while one takes over from the other."""
    other = Ledger(writer, clock, "boot_2")
    theirs = await other.open(OPENING)
    dead = await Ledger(writer, clock, "boot_3").open(replace(OPENING, request_id="req_2"))
    assert await ledger.reap_orphans(lambda boot: boot == "boot_2") == 1
    assert [row(path, r.id)["state"] for r in (theirs, dead)] == ["open", "orphaned"]
    assert await other.settle(theirs, COMPLETED)


async def test_an_orphan_cannot_be_settled(
    ledger: Ledger, writer: Writer, clock: FakeClock, path: Database
) -> None:
    record = await ledger.open(OPENING)
    await Ledger(writer, clock, "boot_2").reap_orphans(lambda boot: False)
    before = row(path, record.id)
    assert not await ledger.settle(record, COMPLETED)
    assert row(path, record.id) == before
    assert line_rows(path) == []
