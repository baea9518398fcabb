"""The one writer thread. Jobs queue up; whatever has gathered is committed together.

A commit costs one wait for the disk, shared by up to `MAX_BATCH` jobs. Each job runs inside its own
savepoint, so one that fails takes back its own changes and nobody else's. An awaited job is durable
when its result arrives.

Jobs seldom fail, and a savepoint costs as much as a statement, so a batch is tried without them
first. If a job fails all is rolled back and done again with them: a job may run twice. Jobs of a
kind that follow each other are done together, if they can be (`Joint`).

Jobs of one turn of an event loop are handed over together, at its end: waking the thread for each
would cost more than the job, and the two would fight for the interpreter.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Generic, TypeVar

from gateway.store.address import Database
from gateway.store.connection import begin, commit, open_for_writing
from gateway.store.errors import StoreError, StoreUnavailable, as_ours, is_of_the_store
from gateway.store.sql import Connection

S = TypeVar("S")
T = TypeVar("T")
Job = Callable[[Connection], T]

MAX_BATCH = 512
WARY = 32  # batches after one in which a job failed: the next may, too


@dataclass(frozen=True, slots=True)
class Joint(Generic[S, T]):
    """A job that is done together with those that follow it in a batch, and have the same `work`.

    `work` takes the subjects of all of them, in order, and has a result for each; one that is an
    exception is raised to who asked. If it raises, each is done by itself.
    """

    work: Callable[[Connection, Sequence[S]], Sequence[T]]
    subject: S

    def __call__(self, db: Connection) -> T:
        """This one alone."""
        (result,) = self.work(db, [self.subject])
        if isinstance(result, Exception):
            raise result
        return result


@dataclass(slots=True, eq=False)
class _Item:
    job: Job[Any]
    future: asyncio.Future[Any] | None  # None: nobody waits
    result: Any = None
    error: Exception | None = None

    @property
    def is_wanted(self) -> bool:
        return self.future is None or not self.future.cancelled()

    def attempt(self, db: Connection) -> None:
        """Run the job in its savepoint. Raises only if the whole transaction is lost."""
        db.execute("SAVEPOINT job")
        self.error = None
        try:
            self.result = self.job(db)
        except Exception as error:  # whatever it is, it belongs to who asked
            if is_of_the_store(error):
                raise
            self.error = as_ours(error)
            db.execute("ROLLBACK TO job")
        db.execute("RELEASE job")

    def resolve(self) -> None:
        """Hand the result over; in the thread of the future's loop."""
        if self.future is None or self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Writer:
    """Owns the only writing connection of the process. Jobs must not begin or commit themselves."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue: SimpleQueue[list[_Item] | None] = SimpleQueue()  # None: nothing follows
        self._gathered: list[_Item] = []  # to be handed over at the end of a loop's turn
        self._left: list[_Item] = []  # handed over, and too many for one batch
        self._lock = Lock()
        self._is_open = False
        self._thread = Thread(target=self._main, name="store-writer", daemon=True)
        self._db: Connection | None = None  # only the thread touches these two
        self._wary = 0

    def start(self) -> None:
        """Start the thread; once in the life of a writer."""
        self._thread.start()
        self._is_open = True

    async def run(self, job: Job[T]) -> T:
        """Run a job in a transaction; its result is durable. A cancelled call may or may not run.

        Raises what the job raises, its changes undone, or StoreUnavailable.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._put(_Item(job, future))
        return await future

    def post(self, job: Job[Any]) -> None:
        """Queue a job that nobody waits for. Raises StoreUnavailable when closed."""
        self._put(_Item(job, None))

    def close(self) -> None:
        """Commit all that is queued and end the thread. Blocks; a second call does nothing.

        A lock held by another process is waited for once more (5 s), then the rest fails.
        """
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
            self._queue.put(self._gathered)
            self._gathered = []
            self._queue.put(None)
        self._thread.join()

    def _put(self, item: _Item) -> None:
        with self._lock:  # nothing may follow the None of close()
            if not self._is_open:
                raise StoreUnavailable("The store's writer is not running.")
            self._gathered.append(item)
            if len(self._gathered) > 1:
                return  # it is due already
        try:
            asyncio.get_running_loop().call_soon(self._hand_over)
        except RuntimeError:  # no loop runs in this thread
            self._hand_over()

    def _hand_over(self) -> None:
        with self._lock:
            gathered, self._gathered = self._gathered, []
            if gathered:
                self._queue.put(gathered)

    def _main(self) -> None:
        while batch := self._next_batch():
            self._commit([item for item in batch if item.is_wanted])
            _deliver(batch)
        self._disconnect()

    def _next_batch(self) -> list[_Item]:
        """Wait for jobs and take all that have gathered; empty when closed and drained."""
        batch, self._left = self._left, []
        with suppress(Empty):
            while len(batch) < MAX_BATCH:
                more = self._queue.get(block=not batch)
                if more is None:
                    if batch:
                        self._queue.put(None)  # seen too early: first this batch, then the end
                    break
                batch += more
        self._left = batch[MAX_BATCH:]
        return batch[:MAX_BATCH]

    def _commit(self, batch: list[_Item]) -> None:
        if not batch:
            return
        try:
            db = self._begin()
            if not self._went_well(db, batch):
                for item in batch:
                    item.attempt(db)
            commit(db)
        except Exception as error:  # noqa: BLE001 - the thread must outlive any fault
            self._disconnect()
            for item in batch:
                item.error = StoreUnavailable(f"The database could not be written to: {error}")
                item.error.__cause__ = error

    def _went_well(self, db: Connection, batch: list[_Item]) -> bool:
        """Run all jobs without savepoints. If one fails, all is as it was before the first."""
        if self._wary:
            self._wary -= 1
            return False
        try:
            for _, items in groupby(batch, key=_work_of):
                _run(db, list(items))
        except Exception as error:
            if is_of_the_store(error):
                raise
            self._wary = WARY
            db.execute("ROLLBACK")
            begin(db)
            return False
        return True

    def _begin(self) -> Connection:
        """Take the write lock, however long another process holds it.

        A server that was restarted has ended a connection that lay idle: it is opened again.
        """
        while True:
            is_new = self._db is None
            self._db = self._db or open_for_writing(self._database)
            try:
                begin(self._db)
            except sqlite3.OperationalError as error:
                if not (_is_busy(error) and self._is_open):
                    raise
            except StoreUnavailable:
                if is_new:
                    raise
                self._disconnect()
            else:
                return self._db

    def _disconnect(self) -> None:
        """Close the connection, which rolls back what it had begun; the next batch reopens it."""
        if self._db is not None:
            with suppress(sqlite3.Error, StoreError):
                self._db.close()
        self._db = None


def _work_of(item: _Item) -> object:
    """What does it together with others; None: it's done by itself."""
    return item.job.work if isinstance(item.job, Joint) else None


def _run(db: Connection, items: list[_Item]) -> None:
    """Do jobs of one kind: one after the other, or together if they can be."""
    joint = [item.job for item in items if isinstance(item.job, Joint)]
    if not joint:
        for item in items:
            item.result = item.job(db)
        return
    results = joint[0].work(db, [job.subject for job in joint])
    for item, result in zip(items, results, strict=True):
        if isinstance(result, Exception):
            item.error = result
        else:
            item.result = result


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY  # the low byte: the primary code


def _deliver(batch: list[_Item]) -> None:
    """Wake each event loop once, however many of its futures are in the batch."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Item]] = {}
    for item in batch:
        if item.future is not None:
            by_loop.setdefault(item.future.get_loop(), []).append(item)
    for loop, items in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve, items)


def _resolve(items: list[_Item]) -> None:
    for item in items:
        item.resolve()
