"""The alert that a budget is spent, raised by the first request of a window that it refuses.

A refused request leaves nothing in the store, so this is a transaction of its own, once a window.
"""

from __future__ import annotations

from contextlib import suppress

from gateway.budgets.alerts import raise_exhausted
from gateway.budgets.holds import OverBudget
from gateway.budgets.rows import Account, insert_window
from gateway.store.errors import StoreUnavailable
from gateway.store.sql import Connection
from gateway.store.writer import Writer


class Exhausted:
    """Remembers of each budget in which window it was told of."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._told: dict[str, int] = {}

    def note(self, fault: BaseException) -> None:
        """A request was refused with this; nobody waits for the alert."""
        if not isinstance(fault, OverBudget) or not fault.is_spent:
            return
        account = fault.account
        budget_id, starts_at = account.key
        if self._told.get(budget_id) == starts_at:
            return
        self._told[budget_id] = starts_at
        with suppress(StoreUnavailable):  # closed: another gateway will be asked for as much
            self._writer.post(lambda db: _raise(db, account, fault.at_us))


def _raise(db: Connection, account: Account, now_us: int) -> None:
    insert_window(db, account)  # its row may have been the refused request's
    raise_exhausted(db, account, now_us)
