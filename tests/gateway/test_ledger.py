"""The ledger: entered before the work, settled once after it, never changed again."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.billing import Outcome, UsageSource
from gateway.door import Door
from gateway.ledger import Ledger, Opening, OpenRecord, Settlement
from gateway.prices import MAX_PRICE_PICO, TokenPrices, Usage
from gateway.store.connection import open_for_reading, open_for_writing
from gateway.store.errors import StoreUnavailable
from gateway.store.migrate import migrate
from gateway.store.writer import Writer

OPENING = Opening(
    request_id="req_1",
    tenant_id="tn_1",
    api_key_id="key_1",
    operation="chat",
    model_id="m",
    model_revision="rev",
    prices=TokenPrices("USD", input=10, cached_input=1, output=100),
    streamed=True,
)
COMPLETED = Settlement(
    outcome=Outcome.COMPLETED,
    usage=Usage(7, 5, 3),
    usage_source=UsageSource.UPSTREAM_FINAL,
    status_code=200,
    finish_reason="stop",
    host_id="host_1",
    first_token_at=1_500,
)
AMOUNT = 2 * 10 + 5 * 1 + 3 * 100


class FakeClock:
    def __init__(self) -> None:
        self.us = 1_000

    def now_us(self) -> int:
        return self.us


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    migrate(path)
    with closing(open_for_writing(path)) as db:
        db.execute("INSERT INTO tenant VALUES ('tn_1', 'acme', 0, 0)")
        db.execute("INSERT INTO api_key VALUES ('key_1', 'tn_1', x'01', 'h', 'n', 0, NULL)")
    return path


@pytest.fixture
def writer(path: Path) -> Iterator[Writer]:
    writer = Writer(path)
    writer.start()
    yield writer
    writer.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def ledger(writer: Writer, clock: FakeClock) -> Ledger:
    return Ledger(writer, clock, "boot_1")


def row(path: Path, record_id: str) -> dict[str, object]:
    with closing(open_for_reading(path)) as db:
        db.row_factory = sqlite3.Row
        return dict(db.execute("SELECT * FROM usage_record WHERE id = ?", (record_id,)).fetchone())


def line_rows(path: Path) -> list[tuple[object, ...]]:
    with closing(open_for_reading(path)) as db:
        return db.execute("SELECT * FROM usage_line ORDER BY record_id, line_no").fetchall()


async def test_an_open_record_is_in_the_database_with_its_prices_and_no_counts(
    ledger: Ledger, path: Path
) -> None:
    record = await ledger.open(OPENING)
    found = row(path, record.id)
    assert found["state"] == "open"
    assert (found["opened_at"], found["charge_at"], found["boot_id"]) == (1_000, 1_000, "boot_1")
    assert (found["input_price_pico"], found["output_price_pico"]) == (10, 100)
    assert found["input_tokens"] is found["amount_pico"] is found["billable"] is None


async def test_a_settled_record_holds_counts_lines_and_their_sum(
    ledger: Ledger, clock: FakeClock, path: Path
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


async def test_of_64_concurrent_settlements_exactly_one_counts(ledger: Ledger, path: Path) -> None:
    record = await ledger.open(OPENING)
    settled = await asyncio.gather(*(ledger.settle(record, COMPLETED) for _ in range(64)))
    assert sorted(settled) == [False] * 63 + [True]
    assert len(line_rows(path)) == 3


async def test_a_request_id_is_entered_once(ledger: Ledger) -> None:
    await ledger.open(OPENING)
    with pytest.raises(sqlite3.IntegrityError, match="request_id"):
        await ledger.open(OPENING)


async def test_what_is_not_billed_keeps_its_counts_and_has_no_lines(
    ledger: Ledger, path: Path
) -> None:
    record = await ledger.open(OPENING)
    assert await ledger.settle(record, replace(COMPLETED, outcome=Outcome.INTEGRITY_ABORT))
    found = row(path, record.id)
    assert (found["billable"], found["bill_reason"]) == (0, "integrity_abort")
    assert (found["amount_pico"], found["input_tokens"], found["output_tokens"]) == (0, 7, 3)
    assert line_rows(path) == []


async def test_missing_usage_is_not_zero(ledger: Ledger, path: Path) -> None:
    record = await ledger.open(OPENING)
    assert await ledger.settle(record, replace(COMPLETED, usage=None))
    found = row(path, record.id)
    assert (found["billable"], found["bill_reason"]) == (0, "usage_missing")
    assert (found["input_tokens"], found["usage_source"]) == (None, "none")


async def test_an_amount_past_64_bits_is_settled_unbilled_and_says_so(
    ledger: Ledger, path: Path
) -> None:
    prices = TokenPrices("USD", MAX_PRICE_PICO, 0, 0)
    record = await ledger.open(replace(OPENING, prices=prices))
    assert await ledger.settle(record, replace(COMPLETED, usage=Usage(10**9, 0, 0)))
    found = row(path, record.id)
    assert (found["bill_reason"], found["amount_pico"]) == ("amount_out_of_range", 0)


async def test_orphans_are_what_other_boots_left_open(
    ledger: Ledger, writer: Writer, clock: FakeClock, path: Path
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
    ledger: Ledger, writer: Writer, clock: FakeClock, path: Path
) -> None:
    """Two workers of one gateway share the store while one takes over from the other."""
    other = Ledger(writer, clock, "boot_2")
    theirs = await other.open(OPENING)
    dead = await Ledger(writer, clock, "boot_3").open(replace(OPENING, request_id="req_2"))
    assert await ledger.reap_orphans(lambda boot: boot == "boot_2") == 1
    assert [row(path, r.id)["state"] for r in (theirs, dead)] == ["open", "orphaned"]
    assert await other.settle(theirs, COMPLETED)


async def test_an_orphan_cannot_be_settled(
    ledger: Ledger, writer: Writer, clock: FakeClock, path: Path
) -> None:
    record = await ledger.open(OPENING)
    await Ledger(writer, clock, "boot_2").reap_orphans(lambda boot: False)
    before = row(path, record.id)
    assert not await ledger.settle(record, COMPLETED)
    assert row(path, record.id) == before
    assert line_rows(path) == []


REQUIRED = (
    "id, request_id, tenant_id, api_key_id, operation, model_id, model_revision, streamed, boot_id,"
    " currency, input_price_pico, cached_input_price_pico, output_price_pico, opened_at, charge_at"
)
CHANGES = [
    "UPDATE usage_record SET amount_pico = 0",
    "UPDATE usage_record SET state = 'open'",
    "UPDATE usage_record SET finish_reason = 'x'",
    "DELETE FROM usage_record",
    "REPLACE INTO usage_record SELECT * FROM usage_record",
    f"REPLACE INTO usage_record ({REQUIRED}, state) SELECT {REQUIRED}, 'open' FROM usage_record",
]


@pytest.mark.parametrize(
    "change",
    [
        *CHANGES,
        "UPDATE usage_line SET line_no = line_no + 7",
        "DELETE FROM usage_line",
        "REPLACE INTO usage_line SELECT * FROM usage_line",
        "INSERT INTO usage_line SELECT record_id, 9, sku_id, token_class, quantity, price_pico,"
        " amount_pico FROM usage_line LIMIT 1",
    ],
)
async def test_a_settled_record_and_its_lines_do_not_change(
    ledger: Ledger, path: Path, change: str
) -> None:
    await ledger.settle(await ledger.open(OPENING), COMPLETED)
    assert_refused(path, change)


@pytest.mark.parametrize("change", CHANGES)
async def test_an_orphan_does_not_change(
    ledger: Ledger, writer: Writer, clock: FakeClock, path: Path, change: str
) -> None:
    await ledger.open(OPENING)
    await Ledger(writer, clock, "boot_2").reap_orphans(lambda boot: False)
    assert_refused(path, change)


def assert_refused(path: Path, change: str) -> None:
    with (
        closing(open_for_writing(path)) as db,
        pytest.raises(sqlite3.IntegrityError, match=r"not|no more|starts open"),
    ):
        db.execute(change)


async def test_an_amount_that_is_not_the_sum_of_its_lines_is_refused(
    ledger: Ledger, path: Path
) -> None:
    await ledger.open(OPENING)
    with (
        closing(open_for_writing(path)) as db,
        pytest.raises(sqlite3.IntegrityError, match="the sum of its lines"),
    ):
        db.execute(
            "UPDATE usage_record SET state = 'settled', outcome = 'completed', billable = 1,"
            " settled_at = 1, usage_source = 'none', amount_pico = 5"
        )


class Gate:
    """A job that holds the writer until it's opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, db: sqlite3.Connection) -> None:
        self.entered.set()
        assert self.opened.wait(10)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 10)


async def test_an_opening_cancelled_before_it_ran_leaves_nothing(
    ledger: Ledger, writer: Writer, path: Path
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
    ledger: Ledger, writer: Writer, path: Path
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
    ledger: Ledger, writer: Writer, path: Path
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
    with pytest.raises(sqlite3.IntegrityError):
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
    ledger: Ledger, writer: Writer, path: Path
) -> None:
    writer.post(lambda db: db.execute("UPDATE directory_version SET version = 77"))
    await ledger.flush()
    with closing(open_for_reading(path)) as db:
        assert db.execute("SELECT version FROM directory_version").fetchone() == (77,)
