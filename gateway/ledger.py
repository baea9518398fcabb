"""The ledger: one usage record for each request, opened before the work and settled once after it.

An open record is durable before the upstream is asked; a settled one before the end of the answer
is sent. What a killed process left open becomes orphaned: kept, and not billed. So does, as soon as
the store can be written to again, what could not be settled: on a full disk, say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gateway.billing import Outcome, UsageSource
from gateway.budgets.accounts import Accounts
from gateway.budgets.exhausted import Exhausted
from gateway.clock import Clock
from gateway.door import Door
from gateway.entering import Charged, Ended, Entered, Result, Step, hold_for, write
from gateway.ids import new_id
from gateway.record import (
    Opening,
    OpenRecord,
    Settlement,
    closing_of,
    opened_of,
)
from gateway.store.budget_holds import give_back
from gateway.store.errors import StoreUnavailable
from gateway.store.records import move, orphan, orphan_of
from gateway.store.sql import Connection
from gateway.store.writer import Job, Joint, Writer

CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that left; it's only written down

_ABANDONED = Settlement(
    outcome=Outcome.CLIENT_CANCELLED,
    usage=None,
    usage_source=UsageSource.NONE,
    status_code=CLIENT_CLOSED_REQUEST,
    finish_reason=None,
    host_id=None,
    first_token_at=None,
)


def _no_look(_: Connection) -> None:
    """Who lives is known otherwise."""


class Ledger:
    """Opens and settles usage records. Every await may raise StoreUnavailable."""

    def __init__(
        self,
        writer: Writer,
        clock: Clock,
        boot_id: str,
        door: Door | None = None,
        is_assured: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_assured` says whether no other gateway can have taken this one for dead."""
        self._writer = writer
        self._clock = clock
        self._boot_id = boot_id
        self._door = door or Door(0)
        self._is_assured = is_assured
        self._exhausted = Exhausted(writer)
        self._write = self._write_steps  # one object, by which the writer knows what goes together
        self.in_doubt = asyncio.Event()  # a row may be open that nobody is going to settle
        self.fault: StoreUnavailable | None = None  # why, if it was one

    async def open(self, opening: Opening) -> OpenRecord:
        """Enter a request; durable when this returns.

        Waits while the store is being restored. Raises UniqueViolated if the request id was
        entered before, ReferenceViolated if the store doesn't have the tenant or the key;
        OverBudget or OtherCurrency if it doesn't fit into a budget.
        """
        if not self._is_assured():
            raise StoreUnavailable("This gateway's lease isn't renewed just now.")
        record_id = new_id("ur")
        await self._door.enter(record_id)
        now_us = self._clock.now_us()
        record = OpenRecord(record_id, opening, now_us, now_us)
        try:
            entered = Entered(record, opened_of(record, self._boot_id))
            charged = await self._writer.run(Joint(self._write, entered))
        except BaseException as fault:
            self._doubt(fault, lambda: self._ending(record, _ABANDONED))
            self._door.leave(record.id)
            self._exhausted.note(fault)
            raise
        assert isinstance(charged, Charged)
        return OpenRecord(record_id, opening, now_us, charged.charge_at, charged.output_cut)

    async def move(self, record: OpenRecord, opening: Opening) -> OpenRecord | None:
        """An open record becomes another model's, at its terms; durable when this returns.

        None if it was closed before. Raises OverBudget or OtherCurrency, and it stays as it was.
        """
        moved = replace(record, opening=opening, output_cut=None)
        job = _moving_job(moved, self._boot_id)
        try:
            is_open, cut = await self._writer.run(job)
        except BaseException as fault:
            self._doubt(fault)
            raise
        return replace(moved, output_cut=cut) if is_open else None

    async def settle(self, record: OpenRecord, settlement: Settlement) -> bool:
        """Close a record, once: False if it was closed before. Durable when this returns.

        Goes through even if the caller is cancelled meanwhile.
        """
        job = self._ending(record, settlement)
        try:
            return await self._writer.run(job) is True
        except BaseException as fault:
            self._doubt(fault, lambda: job)
            raise
        finally:
            self._door.leave(record.id)

    async def close_left_open(self) -> int:
        """Close, unbilled, what this boot has open and no request of it will; how many there were.

        Waits while the store is being restored.
        """
        name = new_id("ur")
        await self._door.enter(name)
        try:
            # What was queued before this job is inside, or has ended: no await comes between.
            running, now_us = self._door.inside(), self._clock.now_us()
            return await self._writer.run(lambda db: orphan_of(db, self._boot_id, running, now_us))
        except BaseException as fault:
            self._doubt(fault)
            raise
        finally:
            self._door.leave(name)

    async def flush(self) -> None:
        """Returns once all that was entered and settled before is in the store, or has failed."""
        await self._writer.run(lambda _db: None)

    async def reap_orphans(
        self, is_alive: Callable[[str], bool], look: Callable[[Connection], None] = _no_look
    ) -> int:
        """Close, unbilled, what boots left open that don't live any more; how many there were.

        `look` runs first, in the same transaction, for `is_alive` to know.
        """
        now_us = self._clock.now_us()

        def is_dead(boot_id: str) -> bool:
            return boot_id != self._boot_id and not is_alive(boot_id)

        def job(db: Connection) -> int:
            look(db)
            return orphan(db, is_dead, now_us)

        return await self._writer.run(job)

    def _doubt(self, fault: BaseException, closing: Callable[[], Job[Any]] | None = None) -> None:
        """A write has failed: it's unknown what is in the store.

        For who is cancelled `closing` is posted, so that no row is left open. If it ran before, it
        does nothing now.
        """
        if isinstance(fault, StoreUnavailable):
            self.fault = fault
            self.in_doubt.set()
        elif isinstance(fault, asyncio.CancelledError):
            self.in_doubt.set()  # nobody hears if it fails
            if closing is not None:
                with suppress(StoreUnavailable):  # closed: the next start reaps
                    self._writer.post(closing())

    def _ending(self, record: OpenRecord, settlement: Settlement) -> Joint[Step, Result]:
        closing = closing_of(record, settlement, self._clock.now_us())
        return Joint(self._write, Ended(record, closing))

    def _write_steps(self, db: Connection, steps: Sequence[Step]) -> list[Result]:
        return write(db, steps, self._clock.now_us())


def _moving_job(record: OpenRecord, boot_id: str) -> Job[tuple[bool, int | None]]:
    opened = opened_of(record, boot_id)

    def job(db: Connection) -> tuple[bool, int | None]:
        if not move(db, opened):
            return False, None
        give_back(db, record.id)  # it will hold for the other model
        accounts = Accounts(db)
        cut = hold_for(accounts, record, record.charge_at)
        accounts.save()
        return True, cut

    return job
