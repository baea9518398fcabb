"""Billing periods in the store: closing a month fixes what is billed in it, for good.

Nothing is charged to a closed month any more: what comes late, and what is corrected, is charged to
the month that is open then. Each function runs inside a transaction; times are microseconds UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.money.errors import MoneyError
from gateway.store import audit
from gateway.store.sql import Connection
from gateway.usage.calendar import HOUR_US, month_name, month_of

GRACE_US = 48 * HOUR_US  # after a month's end: for answers that are still on their way, and people


class PeriodError(MoneyError):
    """A month can't be closed; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Period:
    """A month. `seq_bound`: the last record of any month that was closed before it was."""

    starts_at: int
    ends_at: int
    closed_at: int | None = None
    seq_bound: int | None = None

    @property
    def is_closed(self) -> bool:
        """Whether nothing is charged to it any more."""
        return self.closed_at is not None


def close(db: Connection, starts_at: int, now_us: int, grace_us: int = GRACE_US) -> Period:
    """Close a month; one that is closed stays as it is. Raises PeriodError."""
    found = period(db, starts_at)
    if found.is_closed:
        return found
    name = month_name(starts_at)
    if now_us < found.ends_at + grace_us:
        hours = grace_us // HOUR_US
        raise PeriodError(f"{name} can be closed {hours} hours after its end, and no sooner.")
    values = {"starts_at": starts_at, "ends_at": found.ends_at}
    if (first := _first_unclosed(db, starts_at)) is not None:
        raise PeriodError(f"{month_name(first)} has charges and is open: close it first.")
    (running,) = db.execute(_OPEN_IN, values).fetchone()
    if running:
        raise PeriodError(
            f"{running} of {name}'s records are still open: wait for them, or start the gateway "
            "once, which closes what a killed one has left."
        )
    (bound,) = db.execute(_BOUND).fetchone()
    db.execute(_CLOSE, values | {"now": now_us, "seq_bound": bound})
    audit.note(db, "period.closed", "period", name, seq_bound=bound)
    return Period(starts_at, found.ends_at, now_us, bound)


def period(db: Connection, starts_at: int) -> Period:
    """One month, as the store has it."""
    row = db.execute(_ONE, {"starts_at": starts_at}).fetchone()
    return _period(row) if row else Period(*month_of(starts_at))


def is_closed(db: Connection, at_us: int) -> bool:
    """Whether nothing can be charged to a moment any more."""
    return period(db, month_of(at_us)[0]).is_closed


def periods(db: Connection, now_us: int) -> list[Period]:
    """All months from the first charge to the present one, in order."""
    (first,) = db.execute(_FIRST).fetchone()
    known = {row[0]: _period(row) for row in db.execute(_ALL)}
    starts, _ = month_of(now_us if first is None else min(now_us, first))
    starts = min([starts, *known])
    found = []
    while starts <= now_us:
        found.append(known.get(starts) or Period(*month_of(starts)))
        starts = found[-1].ends_at
    return found


def _first_unclosed(db: Connection, before: int) -> int | None:
    """The first open month before that one that something is charged to."""
    after = 0
    while True:
        (at,) = db.execute(_NEXT_CHARGE, {"after": after, "before": before}).fetchone()
        if at is None:
            return None
        found = period(db, month_of(at)[0])
        if not found.is_closed:
            return found.starts_at
        after = found.ends_at


def _period(row: Any) -> Period:
    starts_at, ends_at, closed_at, seq_bound = row
    return Period(starts_at, ends_at, closed_at, seq_bound)


_COLUMNS = "starts_at, ends_at, closed_at, seq_bound"
_ONE = f"SELECT {_COLUMNS} FROM billing_period WHERE starts_at = :starts_at"  # noqa: S608
_ALL = f"SELECT {_COLUMNS} FROM billing_period ORDER BY starts_at"  # noqa: S608
_FIRST = "SELECT min(charge_at) FROM usage_record"
_NEXT_CHARGE = """
SELECT min(charge_at) FROM usage_record WHERE charge_at >= :after AND charge_at < :before
"""
_OPEN_IN = """
SELECT count(*) FROM usage_record
WHERE state = 'open' AND charge_at >= :starts_at AND charge_at < :ends_at
"""
_BOUND = "SELECT seq FROM ledger_counter WHERE id = 1"
_CLOSE = """
INSERT INTO billing_period
  (starts_at, ends_at, status, closed_at, seq_bound, created_at, updated_at)
VALUES (:starts_at, :ends_at, 'closed', :now, :seq_bound, :now, :now)
ON CONFLICT (starts_at) DO UPDATE SET
  status = 'closed', closed_at = :now, seq_bound = :seq_bound, updated_at = :now
"""
