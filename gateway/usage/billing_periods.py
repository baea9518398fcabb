"""The months that bills are made for, as FOCUS 1.4's dataset Billing Period: which are final."""

from __future__ import annotations

from gateway.store.address import Database
from gateway.store.reader import read
from gateway.store.sql import Connection
from gateway.usage import csv_text
from gateway.usage.calendar import month_of
from gateway.usage.focus_columns import Column, Row

COLUMNS = (
    Column("BillingPeriodCreated", "time"),
    Column("BillingPeriodEnd", "time"),
    Column("BillingPeriodLastUpdated", "time"),
    Column("BillingPeriodStart", "time"),
    Column("BillingPeriodStatus"),
    Column("InvoiceIssuerName"),
    Column("x_SeqBound", "count"),
)

Closed = dict[int, tuple[int, int]]  # by start: when it was closed, and its bound


def billing_periods(database: Database, start_us: int, end_us: int, issuer: str) -> bytes:
    """The months that [start_us, end_us) touches and that something was charged to, as CSV.

    Times are microseconds UTC. Raises StoreUnavailable.
    """
    starts, closed = read(database, lambda db: _months(db, start_us, end_us))
    rows = [_row(start, closed.get(start), issuer) for start in starts]
    return csv_text.header(COLUMNS) + csv_text.encoder(COLUMNS)(rows)


def _months(db: Connection, start_us: int, end_us: int) -> tuple[list[int], Closed]:
    starts, after_us = [], start_us
    while True:
        place = {"after_us": after_us, "end_us": end_us}
        (at_us,) = db.execute(_NEXT_CHARGE, place).fetchone()
        if at_us is None:
            break
        start, after_us = month_of(at_us)
        starts.append(start)
    closed = {start: (at, bound) for start, at, bound in db.execute(_CLOSED, {}).fetchall()}
    return starts, closed


def _row(start_us: int, closed: tuple[int, int] | None, issuer: str) -> Row:
    end_us = month_of(start_us)[1]
    closed_us, bound = closed or (start_us, None)
    return (start_us, end_us, closed_us, start_us, "Closed" if closed else "Open", issuer, bound)


_NEXT_CHARGE = """
SELECT min(charge_at) FROM usage_record WHERE charge_at >= :after_us AND charge_at < :end_us
"""

_CLOSED = """
SELECT starts_at, closed_at, seq_bound FROM billing_period WHERE status = 'closed'
"""
