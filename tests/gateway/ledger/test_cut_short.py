"""Openings and settlements that are cancelled, held up at the door, or come too late."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from dataclasses import replace

import pytest

from gateway.door import Door
from gateway.ledger import Ledger
from gateway.record import OpenRecord
from gateway.store.address import Database
from gateway.store.connection import open_for_reading
from gateway.store.errors import IntegrityError, StoreUnavailable
from gateway.store.sql import Connection
from gateway.store.writer import Writer
from tests.gateway.records import AMOUNT, COMPLETED, OPENING, FakeClock, line_rows, row


class Gate:
    """A job that holds the writer until it's opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, db: Connection) -> None:
        self.entered.set()
        assert self.opened.wait(10)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 10)


async def test_an_opening_cancelled_before_it_ran_leaves_nothing(
    ledger: Ledger, writer: Writer, path: Database
) -> None:
    gate = Gate()
    writer.post(gate)
    await gate.reached()
    opening = asyncio.ensure_future(ledger.open(OPENING))
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.sleep(0)
    gate.opened.set()
    await writer.run(lambda db: None)
    with closing(open_for_reading(path)) as db:
        assert db.execute("SELECT count(*) FROM usage_record").fetchone() == (0,)


async def test_an_opening_cancelled_while_it_ran_is_settled_unbilled(
    ledger: Ledger, writer: Writer, path: Database
) -> None:
    """Else it would stay open until the next start."""
    first, second = Gate(), Gate()
    writer.post(first)
    await first.reached()
    opening = asyncio.ensure_future(ledger.open(OPENING))
    await asyncio.sleep(0)
    writer.post(second)  # behind it, in the same batch
    first.opened.set()
    await second.reached()
    opening.cancel()
    await asyncio.sleep(0)
    second.opened.set()
    await writer.run(lambda db: None)
    with closing(open_for_reading(path)) as db:
        found = db.execute("SELECT state, outcome, bill_reason FROM usage_record").fetchall()
    assert found == [("settled", "client_cancelled", "nothing_delivered")]


async def test_a_settlement_goes_through_though_its_caller_is_cancelled(
    ledger: Ledger, writer: Writer, path: Database
) -> None:
    record = await ledger.open(OPENING)
    gate = Gate()
    writer.post(gate)
    await gate.reached()
    settling = asyncio.ensure_future(ledger.settle(record, COMPLETED))
    await asyncio.sleep(0)
    settling.cancel()
    await asyncio.sleep(0)
    assert settling.cancelled()
    gate.opened.set()
    assert not await ledger.settle(record, COMPLETED)
    assert row(path, record.id)["amount_pico"] == AMOUNT
    assert len(line_rows(path)) == 3


async def test_nothing_is_entered_once_the_writer_is_closed(ledger: Ledger, writer: Writer) -> None:
    record: OpenRecord = await ledger.open(OPENING)
    writer.close()
    with pytest.raises(StoreUnavailable):
        await ledger.settle(record, COMPLETED)


async def test_requests_wait_at_a_shut_door_and_leave_it_once_settled(
    writer: Writer, clock: FakeClock
) -> None:
    door = Door(30)
    ledger = Ledger(writer, clock, "boot_1", door)
    first = await ledger.open(OPENING)
    door.shut()
    second = asyncio.ensure_future(ledger.open(replace(OPENING, request_id="req_2")))
    emptied = asyncio.ensure_future(door.emptied())
    await asyncio.sleep(0.05)
    assert not second.done()
    assert not emptied.done()
    await ledger.settle(first, COMPLETED)
    await emptied
    assert not second.done()
    door.open()
    await ledger.settle(await second, COMPLETED)


async def test_who_fails_or_is_cancelled_leaves_the_door(writer: Writer, clock: FakeClock) -> None:
    door = Door(30)
    ledger = Ledger(writer, clock, "boot_1", door)
    record = await ledger.open(OPENING)
    with pytest.raises(IntegrityError):
        await ledger.open(OPENING)
    opening = asyncio.ensure_future(ledger.open(replace(OPENING, request_id="req_2")))
    settling = asyncio.ensure_future(ledger.settle(record, COMPLETED))
    await asyncio.sleep(0)
    opening.cancel()
    settling.cancel()
    await asyncio.wait({opening, settling})
    async with asyncio.timeout(30):
        await door.emptied()


async def test_what_was_posted_is_in_the_store_after_a_flush(
    ledger: Ledger, writer: Writer, path: Database
) -> None:
    writer.post(lambda db: db.execute("UPDATE directory_version SET version = 77"))
    await ledger.flush()
    with closing(open_for_reading(path)) as db:
        assert db.execute("SELECT version FROM directory_version").fetchone() == (77,)
