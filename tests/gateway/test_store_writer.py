"""The writer thread: what is committed together, what fails alone, what it outlives."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.store import connection
from gateway.store.address import Database
from gateway.store.connection import open_for_reading, open_for_writing
from gateway.store.errors import StoreUnavailable, UniqueViolated
from gateway.store.migrate import migrate
from gateway.store.sql import Connection
from gateway.store.writer import MAX_BATCH, Job, Writer
from tests.gateway.accounts import add_key, add_tenant


@pytest.fixture
def path(database: Database) -> Database:
    return database


@pytest.fixture
def writer(path: Database) -> Iterator[Writer]:
    writer = Writer(path)
    writer.start()
    yield writer
    writer.close()


def adding(name: str) -> Job[str]:
    def job(db: Connection) -> str:
        add_tenant(db, name, name)
        return name

    return job


def names(path: Database) -> list[str]:
    with closing(open_for_reading(path)) as db:
        return [name for (name,) in db.execute("SELECT name FROM tenant ORDER BY name")]


class Gate:
    """A job that holds the writer until it's opened, so that others gather behind it."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, db: Connection) -> None:
        self.entered.set()
        assert self.opened.wait(10)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 10)


async def test_a_result_arrives_after_the_commit(writer: Writer, path: Database) -> None:
    assert await writer.run(adding("acme")) == "acme"
    assert names(path) == ["acme"]


async def test_a_bad_job_fails_alone_and_takes_back_its_own_changes(
    writer: Writer, path: Database
) -> None:
    def bad(db: Connection) -> None:
        add_tenant(db, "half", "half")
        raise ValueError("changed my mind")

    gate = Gate()
    writer.post(gate)  # so that the next five are one batch
    await gate.reached()
    jobs: list[Job[object]] = [adding("a"), bad, adding("b"), adding("a"), adding("c")]
    waiting = [asyncio.ensure_future(writer.run(job)) for job in jobs]
    await asyncio.sleep(0)
    gate.opened.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [
        str,
        ValueError,
        str,
        UniqueViolated,
        str,
    ]
    assert names(path) == ["a", "b", "c"]


async def test_a_batch_wakes_its_loop_once(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    wakes = []
    plain = loop.call_soon_threadsafe

    def counted(callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        wakes.append(callback)
        return plain(callback, *args)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    gate = Gate()
    writer.post(gate)
    waiting = [asyncio.ensure_future(writer.run(adding(f"t{n}"))) for n in range(MAX_BATCH)]
    await asyncio.sleep(0)
    gate.opened.set()
    await asyncio.gather(*waiting)
    assert len(wakes) <= 2  # one, or two if the gate's own batch caught a few


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_failed_commit_fails_everyone_in_it_and_the_thread_goes_on(
    writer: Writer, path: Database
) -> None:
    def poisoned(db: Connection) -> None:
        """A violation that SQLite finds only when it commits."""
        db.execute("PRAGMA defer_foreign_keys = ON")
        add_key(db, "k", "nobody")

    gate = Gate()
    writer.post(gate)
    await gate.reached()
    waiting = [asyncio.ensure_future(writer.run(job)) for job in (adding("lost"), poisoned)]
    await asyncio.sleep(0)
    gate.opened.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailable, StoreUnavailable]
    assert results[0] is not results[1]
    assert await writer.run(adding("next")) == "next"
    assert names(path) == ["next"]


async def test_a_transaction_lost_under_a_job_fails_the_batch_and_not_the_thread(
    writer: Writer, path: Database
) -> None:
    """SQLite itself rolls back on a full disk; no job of ours does."""
    with pytest.raises(StoreUnavailable):
        await writer.run(lambda db: db.execute("ROLLBACK"))
    assert await writer.run(adding("next")) == "next"


async def test_a_database_that_cannot_be_opened_fails_each_job_until_it_can(
    tmp_path: Path,
) -> None:
    writer = Writer(tmp_path / "late.db")
    writer.start()
    with pytest.raises(StoreUnavailable, match="can't be opened"):
        await writer.run(adding("a"))
    migrate(tmp_path / "late.db")
    assert await writer.run(adding("a")) == "a"
    writer.close()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_lock_held_elsewhere_is_waited_out(
    writer: Writer, path: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also past the busy timeout, which only bounds one try."""
    monkeypatch.setattr(connection, "BUSY_TIMEOUT_S", 0.02)
    with closing(open_for_writing(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(writer.run(adding("patient")))
        await asyncio.sleep(0.15)
        assert not waiting.done()
        other.execute("COMMIT")
        assert await waiting == "patient"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_closing_does_not_wait_for_ever_for_a_lock(
    path: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "BUSY_TIMEOUT_S", 0.02)
    writer = Writer(path)
    writer.start()
    with closing(open_for_writing(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        writer.post(adding("late"))
        writer.close()
    assert names(path) == []


async def test_a_cancelled_job_is_skipped(writer: Writer, path: Database) -> None:
    gate = Gate()
    writer.post(gate)
    await gate.reached()
    waiting = [asyncio.ensure_future(writer.run(adding(name))) for name in ("stays", "leaves")]
    await asyncio.sleep(0)
    waiting[1].cancel()
    gate.opened.set()
    assert await waiting[0] == "stays"
    assert names(path) == ["stays"]


async def test_a_caller_that_left_while_its_job_ran_disturbs_nobody(
    writer: Writer, path: Database
) -> None:
    gate = Gate()
    leaving = asyncio.ensure_future(writer.run(gate))
    await gate.reached()
    leaving.cancel()
    gate.opened.set()
    assert await writer.run(adding("next")) == "next"


async def test_a_loop_that_was_closed_disturbs_nobody(writer: Writer) -> None:
    gate = Gate()

    def ask_and_leave() -> None:
        loop = asyncio.new_event_loop()
        asking = writer.run(gate)
        loop.call_soon(asking.send, None)
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    await asyncio.to_thread(ask_and_leave)
    gate.opened.set()
    assert await writer.run(adding("next")) == "next"


async def test_closing_commits_what_is_queued_and_refuses_what_comes_after(path: Database) -> None:
    writer = Writer(path)
    writer.start()
    for number in range(2 * MAX_BATCH):
        writer.post(adding(f"t{number}"))
    writer.close()
    writer.close()
    assert len(names(path)) == 2 * MAX_BATCH
    with pytest.raises(StoreUnavailable, match="not running"):
        await writer.run(adding("late"))


async def test_a_job_that_fails_has_the_others_run_again_and_what_they_did_is_there_once(
    writer: Writer, path: Database
) -> None:
    """They may run twice; only once do they count, and a while after it each has a savepoint."""
    runs: list[str] = []

    def counted(name: str) -> Job[str]:
        def job(db: Connection) -> str:
            runs.append(name)
            return adding(name)(db)

        return job

    def bad(_: Connection) -> None:
        raise ValueError("no")

    async def batch(*jobs: Job[object]) -> list[object]:
        gate = Gate()
        writer.post(gate)
        await gate.reached()
        waiting = [asyncio.ensure_future(writer.run(job)) for job in jobs]
        await asyncio.sleep(0)
        gate.opened.set()
        return await asyncio.gather(*waiting, return_exceptions=True)

    first, fault = await batch(counted("a"), bad)
    assert (first, type(fault), runs) == ("a", ValueError, ["a", "a"])
    fault, second = await batch(bad, counted("b"))
    assert (second, runs) == ("b", ["a", "a", "b"])
    assert names(path) == ["a", "b"]
