"""The alert that a budget is spent, raised by a request that is refused for want of what is left.

Spending itself stops short of a limit, by less than a request may cost. A budget of which a tenth
is left isn't spent, however large the request. What is refused leaves nothing in the store, so this
is a transaction of its own, once a window.
"""

from __future__ import annotations

from contextlib import suppress

from gateway.budgets.alerts import raise_exhausted
from gateway.budgets.holds import OverBudget
from gateway.store.errors import StoreUnavailable
from gateway.store.writer import Writer

NEARLY_ALL = 90  # percent


class Exhausted:
    """Remembers of each budget in which window it was told of."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._told: dict[str, int] = {}

    def note(self, fault: BaseException) -> None:
        """A request was refused with this; nobody waits for the alert."""
        if not isinstance(fault, OverBudget) or fault.reason == "held":
            return
        account = fault.account
        if account.spent_nano * 100 < NEARLY_ALL * account.budget.limit_nano:
            return
        budget_id, starts_at = account.key
        if self._told.get(budget_id) == starts_at:
            return
        self._told[budget_id] = starts_at
        with suppress(StoreUnavailable):  # closed: another gateway will be asked for as much
            self._writer.post(lambda db: raise_exhausted(db, account, fault.at_us))
