"""Which part of the ledger is told: a period, up to a bound, of one tenant or of all.

The bound is a number of the ledger's sequence, which counts records as they are closed. What was
closed up to it never changes: so a selection gives the same rows today and in a year.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.store.sql import Connection
from gateway.usage.calendar import moment_of, month_start, us


@dataclass(frozen=True, slots=True)
class Selection:
    """Times are microseconds UTC, the end exclusive. None: all of them."""

    start_us: int
    end_us: int
    bound: int
    tenant_id: str | None = None
    project_id: str | None = None

    def where(self) -> str:
        """The condition on a record `r`, its parameters being `values`."""
        tenant = "r.tenant_id = :tenant_id AND " if self.tenant_id is not None else ""
        project = "r.project_id = :project_id AND " if self.project_id is not None else ""
        return f"{tenant}{project}r.seq <= :bound AND r.charge_at < :end_us"

    def values(self) -> dict[str, object]:
        """The parameters of `where`."""
        found: dict[str, object] = {"bound": self.bound, "end_us": self.end_us}
        if self.tenant_id is not None:
            found["tenant_id"] = self.tenant_id
        if self.project_id is not None:
            found["project_id"] = self.project_id
        return found


class NoSuchBound(Exception):
    """So many records aren't closed yet: later, such an export would hold more."""


def checked_bound(db: Connection, bound: int) -> int:
    """A bound that was asked for. Raises NoSuchBound."""
    now = _newest(db)
    if bound > now:
        raise NoSuchBound(
            f"no record is numbered {bound} yet: the last one that is closed is {now}"
        )
    return bound


def bound_of(db: Connection, start_us: int, end_us: int) -> int:
    """The bound of a period: the one that it was closed with, or that of all closed by now."""
    first, last = (us(month_start(moment_of(at))) for at in (start_us, end_us - 1))
    values = {"first": first, "last": last}
    num_closed, bound = db.execute(_CLOSED, values).fetchone()
    if num_closed and num_closed == _num_months(first, last):
        return int(bound)
    return _newest(db)


def _newest(db: Connection) -> int:
    return int(db.execute(_NOW).fetchone()[0])


def _num_months(first_us: int, last_us: int) -> int:
    first, last = moment_of(first_us), moment_of(last_us)
    return 12 * (last.year - first.year) + last.month - first.month + 1


_CLOSED = """
SELECT count(*), max(seq_bound) FROM billing_period
WHERE status = 'closed' AND starts_at >= :first AND starts_at <= :last
"""

_NOW = "SELECT seq FROM ledger_counter WHERE id = 1"
