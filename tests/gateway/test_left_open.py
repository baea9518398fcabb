"""Rows whose settling failed are closed, unbilled, once the store can be written to again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.clock import SYSTEM_CLOCK
from gateway.door import Door
from gateway.ledger import Ledger
from gateway.left_open import LONGEST_S, follow, pauses
from gateway.record import Opening
from gateway.store.connection import open_for_reading, open_for_writing
from gateway.store.errors import StoreUnavailable
from gateway.store.sql import Connection
from gateway.store.writer import Writer
from tests.gateway.records import COMPLETED, OPENING, new_store

FULL = "database or disk is full"
BIG = "x" * 1_000_000  # a model's name that needs new pages


class Broken(Writer):
    """A writer whose database can't grow, or can't be written to, while `pragma` is set."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path = path
        self.pragma = ""

    def _begin(self) -> Connection:
        self._disconnect()
        if self.pragma:
            self._db = open_for_writing(self._path)
            self._db.execute(self.pragma)
        return super()._begin()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return new_store(tmp_path)


@pytest.fixture
def writer(path: Path) -> Iterator[Broken]:
    writer = Broken(path)
    writer.start()
    yield writer
    writer.close()


@pytest.fixture
def ledger(writer: Writer) -> Ledger:
    return Ledger(writer, SYSTEM_CLOCK, "boot_1", Door(30))


class Time:
    """Pauses that end when the test says so."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self._turn = asyncio.Semaphore(0)
        self._paused = asyncio.Event()

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._paused.set()
        await self._turn.acquire()

    async def next(self) -> None:
        """Returns at the next pause."""
        async with asyncio.timeout(30):
            await self._paused.wait()
        self._paused.clear()

    def go_on(self) -> None:
        self._turn.release()


def opening(number: int, model: str = "m") -> Opening:
    return replace(OPENING, request_id=f"req_{number}", model_id=model)


def states(path: Path) -> dict[str, tuple[str, str | None, int | None]]:
    with closing(open_for_reading(path)) as db:
        rows = db.execute("SELECT request_id, state, outcome, billable FROM usage_record")
        return {request_id: tuple(rest) for request_id, *rest in rows}


OPEN = ("open", None, None)
CLOSED = ("orphaned", "crashed", 0)


@pytest.mark.parametrize("pragma", ["PRAGMA max_page_count = 1", "PRAGMA query_only = ON"])
async def test_what_could_not_be_settled_is_closed_once_that_works_and_the_log_says_both(
    path: Path, writer: Broken, ledger: Ledger, pragma: str
) -> None:
    time = Time()
    lost, runs = await ledger.open(opening(1, BIG)), await ledger.open(opening(2))
    writer.pragma = pragma
    with capture_logs() as log:
        following = asyncio.ensure_future(follow(ledger, time.pause))
        settlement = replace(COMPLETED, host_id=BIG)
        with pytest.raises(StoreUnavailable):
            await ledger.settle(lost, settlement)
        with pytest.raises(StoreUnavailable):
            await ledger.open(opening(3, BIG))
        await time.next()
        if "query_only" in pragma:
            for _ in range(3):
                time.go_on()
                await time.next()
            assert states(path) == {"req_1": OPEN, "req_2": OPEN}
        writer.pragma = ""
        while ledger.in_doubt.is_set():
            time.go_on()
            await time.next()
        time.go_on()
        await asyncio.sleep(0)
    assert states(path) == {"req_1": CLOSED, "req_2": OPEN}
    assert await ledger.settle(runs, COMPLETED)
    assert [entry["event"] for entry in log] == ["ledger_not_written", "ledger_written_again"]
    assert log[1]["closed_unbilled"] == 1
    following.cancel()


async def test_a_cancelled_request_whose_row_nobody_could_close_is_closed_too(
    path: Path, writer: Broken, ledger: Ledger
) -> None:
    """What is posted for it may fail, and nobody hears."""
    time = Time()
    following = asyncio.ensure_future(follow(ledger, time.pause))
    record = await ledger.open(OPENING)
    writer.pragma = "PRAGMA query_only = ON"
    settling = asyncio.ensure_future(ledger.settle(record, COMPLETED))
    await asyncio.sleep(0)
    settling.cancel()
    with suppress(asyncio.CancelledError):
        await settling
    await time.next()
    writer.pragma = ""
    while states(path)["req_1"] == OPEN:
        time.go_on()
        await time.next()
    assert states(path)["req_1"] == CLOSED
    following.cancel()


async def test_what_runs_and_what_other_processes_have_open_is_spared(
    path: Path, writer: Broken, ledger: Ledger
) -> None:
    theirs = Ledger(writer, SYSTEM_CLOCK, "boot_2")
    await theirs.open(opening(1))
    await ledger.open(opening(2))
    coming = asyncio.ensure_future(ledger.open(opening(3)))
    await asyncio.sleep(0)
    assert await ledger.close_left_open() == 0
    await coming
    assert set(states(path).values()) == {OPEN}


async def test_it_waits_while_the_store_is_restored(path: Path, writer: Broken) -> None:
    door = Door(30)
    ledger = Ledger(writer, SYSTEM_CLOCK, "boot_1", door)
    record = await ledger.open(OPENING)
    writer.pragma = "PRAGMA query_only = ON"
    with pytest.raises(StoreUnavailable):
        await ledger.settle(record, COMPLETED)
    writer.pragma = ""
    door.shut()
    closing_ = asyncio.ensure_future(ledger.close_left_open())
    await asyncio.sleep(0.05)
    await door.emptied()
    assert states(path)["req_1"] == OPEN
    door.open()
    assert await closing_ == 1


async def test_a_door_that_stays_shut_is_no_end_of_it(path: Path, writer: Broken) -> None:
    door, time = Door(0), Time()
    ledger = Ledger(writer, SYSTEM_CLOCK, "boot_1", door)
    record = await ledger.open(OPENING)
    writer.pragma = "PRAGMA query_only = ON"
    door.shut()
    following = asyncio.ensure_future(follow(ledger, time.pause))
    with pytest.raises(StoreUnavailable):
        await ledger.settle(record, COMPLETED)
    await time.next()
    writer.pragma = ""
    door.open()
    time.go_on()
    await time.next()
    assert states(path)["req_1"] == CLOSED
    following.cancel()


def test_the_pauses_grow_to_a_limit() -> None:
    found = list(islice(pauses(), 20))
    assert found[:4] == [0.5, 1, 2, 4]
    assert found == sorted(found)
    assert found[-1] == LONGEST_S
