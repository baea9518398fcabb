"""Alerts: raised once a window for each percentage of a budget's limit that its spending reaches.

They are raised in the transaction that reaches them, and sent later, by `sender`. The last one is
raised, too, when a request is refused and nearly all is spent: spending stops short of a limit.
"""

from __future__ import annotations

from gateway.budgets.rows import Account
from gateway.store.sql import Connection

ALL_OF_IT = 100


def raise_reached(db: Connection, account: Account, spent_nano: int, now_us: int) -> None:
    """Raise what the account has reached by spending so much more."""
    budget, before = account.budget, account.spent_nano
    for percent in budget.alerts:
        mark = percent * budget.limit_nano
        if before * 100 < mark <= (before + spent_nano) * 100:
            raise_alert(db, account.key, percent, now_us)


def raise_exhausted(db: Connection, account: Account, now_us: int) -> None:
    """Raise the alert that all is spent, if the budget has it."""
    if ALL_OF_IT in account.budget.alerts:
        raise_alert(db, account.key, ALL_OF_IT, now_us)


def raise_alert(db: Connection, window: tuple[str, int], percent: int, now_us: int) -> None:
    """Raise an alert; nothing happens if the window has had it."""
    budget_id, starts_at = window
    values = {"budget_id": budget_id, "starts_at": starts_at, "percent": percent, "now": now_us}
    db.execute(_RAISE, values)


_RAISE = """
INSERT INTO budget_alert (budget_id, starts_at, percent, raised_at, attempts, next_try_at)
VALUES (:budget_id, :starts_at, :percent, :now, 0, :now)
ON CONFLICT (budget_id, starts_at, percent) DO NOTHING
"""
