"""What an answer used, settled once in a real ledger."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.billing import Outcome
from gateway.catalog.catalog import catalog_of
from gateway.entry import Entry, ending
from gateway.errors import (
    BadRequest,
    BodyTooLarge,
    ContextTooLong,
    IntegrityAbort,
    Internal,
    StoreDown,
    TookTooLong,
    Unauthorized,
    Unavailable,
    UpstreamFailed,
    UpstreamTimeout,
)
from gateway.ledger import Ledger
from gateway.limits.gate import Gate, Grant
from gateway.limits.local import LocalLimiter
from gateway.prices import Terms, TokenPrices
from gateway.record import Opening
from gateway.relay.errand import Errand
from gateway.relay.sse import Frame
from gateway.schema import decode_chat
from gateway.stopper import ClientGone
from gateway.store.connection import open_for_reading, open_for_writing
from gateway.store.migrate import migrate
from gateway.store.writer import Writer
from runtime.config.models import ModelSettings
from tests.gateway.accounts import add_key, add_tenant
from tests.gateway.counting import FINAL, FakeClock, meter, own, see


@pytest.mark.parametrize(
    ("fault", "outcome", "status"),
    [
        (ClientGone(), Outcome.CLIENT_CANCELLED, 499),
        (asyncio.CancelledError(), Outcome.CLIENT_CANCELLED, 499),
        (BadRequest("x"), Outcome.REFUSED, 400),
        (ContextTooLong("x"), Outcome.REFUSED, 400),
        (IntegrityAbort("x"), Outcome.INTEGRITY_ABORT, 503),
        (Unavailable("x"), Outcome.UPSTREAM_ERROR, 503),
        (StoreDown("x"), Outcome.CRASHED, 503),
        (UpstreamFailed("x"), Outcome.UPSTREAM_ERROR, 502),
        (UpstreamTimeout("x"), Outcome.TIMEOUT, 504),
        (TookTooLong("x"), Outcome.TIMEOUT, 504),
        (Internal("x"), Outcome.CRASHED, 500),
        (BodyTooLarge("x"), Outcome.UPSTREAM_ERROR, 413),
        (ValueError("x"), Outcome.CRASHED, 500),
        (TimeoutError(), Outcome.CRASHED, 500),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_each_end_has_its_outcome(fault: BaseException, outcome: Outcome, status: int) -> None:
    assert ending(fault) == (outcome, status)


class Books:
    """A real store, its ledger, and entries into it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store.db"
        migrate(self.path)
        with closing(open_for_writing(self.path)) as db:
            add_tenant(db)
            add_key(db)
        self.writer = Writer(self.path)
        self.writer.start()
        self.ledger = Ledger(self.writer, FakeClock(), "boot_1")

    def entry(self) -> Entry:
        ask = decode_chat(b'{"model":"m","messages":[{"role":"user","content":"x"}]}')
        deployment = catalog_of([ModelSettings(id="m", engine="fake")], {}).deployment("m", 0)
        errand = Errand(ask, deployment, "d", "req_1", "host-0-1")
        terms = Terms.of(TokenPrices("USD", 10, 1, 100))
        opening = Opening("req_1", "tn_1", "key_1", "chat", "m", "", terms, streamed=True)
        return Entry(self.ledger, opening, meter(), errand, Grant(Gate(LocalLimiter()), "req", ()))

    def rows(self) -> list[dict[str, Any]]:
        with closing(open_for_reading(self.path)) as db:
            db.row_factory = sqlite3.Row
            return [dict(row) for row in db.execute("SELECT * FROM usage_record")]


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    books = Books(tmp_path)
    yield books
    books.writer.close()


async def test_an_entry_is_durable_before_the_work_begins(books: Books) -> None:
    async with books.entry() as entry:
        assert [row["state"] for row in books.rows()] == ["open"]
        await entry.settle()


@pytest.mark.parametrize(
    ("finish", "outcome"),
    [("stop", "completed"), ("length", "length"), (None, "completed"), ("tool_calls", "completed")],
)
async def test_a_finished_answer_is_settled_with_its_total(
    books: Books, finish: str | None, outcome: str
) -> None:
    async with books.entry() as entry:
        see(entry.meter, own(prompt=7, cached=5), own(output=3), Frame(usage=FINAL))
        entry.meter.finish_reason = finish
        await entry.settle()
        (row,) = books.rows()
        assert (row["state"], row["outcome"], row["status_code"]) == ("settled", outcome, 200)
    (row,) = books.rows()
    assert (row["usage_source"], row["finish_reason"]) == ("upstream_final", finish)
    assert (row["input_tokens"], row["cached_input_tokens"], row["output_tokens"]) == (7, 5, 3)
    assert (row["billable"], row["amount_pico"], row["host_id"]) == (1, 325, "host-0-1")


ENDS: list[tuple[BaseException, str, int, int]] = [
    (ClientGone(), "client_cancelled", 499, 1), (UpstreamFailed("x"), "upstream_error", 502, 0),
    (IntegrityAbort("x"), "integrity_abort", 503, 0), (UpstreamTimeout("x"), "timeout", 504, 0),
    (ContextTooLong("x"), "refused", 400, 0), (ZeroDivisionError(), "crashed", 500, 0),
    (StoreDown("x"), "crashed", 503, 0), (asyncio.CancelledError(), "client_cancelled", 499, 1),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "outcome", "status", "billable"), ENDS, ids=repr)
async def test_a_fault_settles_what_was_delivered_and_goes_on(
    books: Books, fault: BaseException, outcome: str, status: int, billable: int
) -> None:
    entry = books.entry()

    async def serve() -> None:
        async with entry:
            see(entry.meter, own(prompt=7, cached=5), own(output=2))
            raise fault

    with pytest.raises(type(fault)):
        await serve()
    (row,) = books.rows()
    assert (row["outcome"], row["status_code"], row["billable"]) == (outcome, status, billable)
    assert (row["usage_source"], row["output_tokens"]) == ("upstream_running", 2)
    assert (entry.summary()["outcome"], entry.summary()["output_tokens"]) == (outcome, 2)


async def test_an_entry_is_settled_once(books: Books) -> None:
    """What goes wrong after the settling, as with a client that leaves then, changes nothing."""

    async def serve() -> None:
        async with books.entry() as entry:
            see(entry.meter, own(prompt=1, cached=0), own(output=1), Frame(usage=FINAL))
            await entry.settle()
            raise ClientGone

    with pytest.raises(ClientGone):
        await serve()
    (row,) = books.rows()
    assert (row["outcome"], row["output_tokens"]) == ("completed", 3)


async def test_a_cancel_while_settling_still_settles(books: Books) -> None:
    release = asyncio.Event()

    async def serve() -> None:
        async with books.entry():
            await release.wait()

    task = asyncio.ensure_future(serve())
    while not books.rows():
        await asyncio.sleep(0)
    for _ in range(3):  # the later ones hit the settling itself
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(books.writer.close)
    assert [row["outcome"] for row in books.rows()] == ["client_cancelled"]


async def test_without_a_store_nothing_is_served(books: Books) -> None:
    books.writer.close()
    with pytest.raises(StoreDown):
        async with books.entry():
            raise AssertionError("it was served")


async def test_a_key_that_a_restore_took_away_is_refused(books: Books) -> None:
    with closing(open_for_writing(books.path)) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("DELETE FROM api_key")
    with pytest.raises(Unauthorized, match="not valid any more"):
        async with books.entry():
            raise AssertionError("it was served")


async def test_a_store_that_goes_away_is_told_before_the_end_of_the_answer(books: Books) -> None:
    """Who has received the end has been billed: so the end must not leave."""

    async def serve() -> None:
        async with books.entry() as entry:
            await asyncio.to_thread(books.writer.close)
            await entry.settle()

    with pytest.raises(StoreDown):
        await serve()
    assert [row["state"] for row in books.rows()] == ["open"]


async def test_a_fault_without_a_store_stays_that_fault(books: Books) -> None:
    async def serve() -> None:
        async with books.entry():
            await asyncio.to_thread(books.writer.close)
            raise UpstreamFailed("x")

    with pytest.raises(UpstreamFailed):
        await serve()
    assert [row["state"] for row in books.rows()] == ["open"]


async def test_an_entry_that_another_process_gave_up_is_not_billed_twice(books: Books) -> None:
    async def serve() -> None:
        async with books.entry() as entry:
            await Ledger(books.writer, FakeClock(), "boot_2").reap_orphans(lambda boot: False)
            await entry.settle()

    with pytest.raises(StoreDown, match="given up"):
        await serve()
    assert [row["state"] for row in books.rows()] == ["orphaned"]
