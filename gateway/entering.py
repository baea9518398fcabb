"""Requests entered in the ledger and closed there: all of a batch in as few statements as can be.

Each function runs inside a transaction of the writer. Those that are entered come first, since one
that is cancelled meanwhile may be closed in the same batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.budgets.accounts import Accounts, Counted
from gateway.budgets.holds import Asked, OtherCurrency, OverBudget, Spent, hold, spend
from gateway.record import Opening, OpenRecord
from gateway.store import records
from gateway.store.records import Closing, Opened
from gateway.store.sql import Connection


class Entered(NamedTuple):
    """A request to be entered, and its columns."""

    record: OpenRecord
    opened: Opened


class Ended(NamedTuple):
    """A record to be closed, and how."""

    record: OpenRecord
    closing: Closing


class Charged(NamedTuple):
    """When a request is charged that was entered, and to how many tokens a budget cuts it."""

    charge_at: int
    output_cut: int | None


Step = Entered | Ended
Result = Charged | bool | OverBudget | OtherCurrency


def write(db: Connection, steps: Sequence[Step], now_us: int) -> list[Result]:
    """What became of each: for one to be closed, whether it was open; a fault is for who asked.

    Raises the store's IntegrityErrors; all of it is to be taken back then.
    """
    entered = iter(_enter(db, [step for step in steps if isinstance(step, Entered)]))
    ended = iter(_end(db, [step for step in steps if isinstance(step, Ended)], now_us))
    return [next(entered) if isinstance(step, Entered) else next(ended) for step in steps]


def hold_for(accounts: Accounts, record: OpenRecord, charge_at: int) -> int | None:
    """Hold what a record may cost; see `holds.hold`."""
    opening = record.opening
    counted = counted_of(opening)
    asked = Asked(record.id, counted, record.opened_at, charge_at, opening.prices, opening.bound)
    return hold(accounts, asked)


def counted_of(opening: Opening) -> Counted:
    """By what its budgets are found."""
    return Counted(opening.tenant_id, opening.project_id, opening.api_key_id, opening.model_id)


def _enter(db: Connection, steps: Sequence[Entered]) -> list[Result]:
    """A request is charged when it was opened; or, if that month is closed already, just after."""
    if not steps:
        return []
    accounts, closed_until = Accounts(db), records.closed_until(db)
    results: list[Result] = []
    rows = []
    for record, opened in steps:
        charge_at = max(record.opened_at, closed_until)
        try:
            cut = hold_for(accounts, record, charge_at)
        except (OverBudget, OtherCurrency) as fault:
            results.append(fault)
        else:
            results.append(Charged(charge_at, cut))
            rows.append((opened, charge_at))
    records.insert_open(db, rows)
    accounts.save()
    return results


def _end(db: Connection, steps: Sequence[Ended], now_us: int) -> list[Result]:
    if not steps:
        return []
    closed = records.close(db, [step.closing for step in steps], now_us)
    spend(
        db, [_spent(step) for step, is_ours in zip(steps, closed, strict=True) if is_ours], now_us
    )
    return list(closed)


def _spent(step: Ended) -> Spent:
    record = step.record
    opening = record.opening
    return Spent(
        record.id,
        counted_of(opening),
        record.charge_at,
        opening.prices.currency,
        step.closing.closed.amount_pico,
    )
