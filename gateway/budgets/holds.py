"""What a request may cost at most is held in its budgets' windows, and given back when it ends.

All of it runs inside the ledger's own transactions: the hold beside the open row, the settlement
beside the closing one. So a hold lasts exactly as long as its record is open, whoever is killed
when; and what a window has spent is the sum of its records' amounts, each rounded up to a nano.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from gateway.budgets.alerts import raise_reached
from gateway.budgets.bounds import LEAST_OUTPUT, Bound, most_pico, nano_of, output_within
from gateway.budgets.rows import Account, Budget, accounts_of
from gateway.prices import TokenPrices
from gateway.store.budget_holds import book, take
from gateway.store.sql import Connection


class OverBudget(Exception):
    """A request doesn't fit into a budget. Its whole transaction is to be taken back."""

    def __init__(
        self, account: Account, at_us: int, needed_nano: int, output_that_fits: int
    ) -> None:
        super().__init__(account.budget.id)
        self.account = account
        self.at_us = at_us
        self.needed_nano = needed_nano
        self.output_that_fits = output_that_fits  # tokens; negative: not even the input does

    @property
    def reason(self) -> Literal["limit", "spent", "held"]:
        """Why: it is more than the whole limit; or else for what was spent, or what others hold."""
        limit_nano = self.account.budget.limit_nano
        if self.needed_nano > limit_nano:
            return "limit"
        return "spent" if self.needed_nano > limit_nano - self.account.spent_nano else "held"


class OtherCurrency(Exception):
    """The model is priced in another currency than a budget: nobody can say whether it fits."""

    def __init__(self, budget: Budget, currency: str) -> None:
        super().__init__(budget.id)
        self.budget = budget
        self.currency = currency


def hold(
    db: Connection, record_id: str, opened_at: int, prices: TokenPrices, bound: Bound
) -> int | None:
    """Hold the most that an open record can cost in all its budgets, or in none.

    Returns to how many tokens its answer must be cut, where the client named no limit and its
    model's own doesn't fit; else None. Raises OverBudget or OtherCurrency.
    """
    needed, cut = nano_of(most_pico(prices, bound)), None
    accounts = accounts_of(db, record_id) if needed else []
    for account in accounts:
        if account.budget.currency != prices.currency:
            raise OtherCurrency(account.budget, prices.currency)
    tightest = min(accounts, key=lambda account: account.left_nano, default=None)
    if tightest is not None and tightest.left_nano < needed:
        cut = output_within(tightest.left_nano, prices, bound)
        if not bound.is_default or cut < min(LEAST_OUTPUT, bound.output_tokens):
            raise OverBudget(tightest, opened_at, needed, cut)
        needed = nano_of(most_pico(prices, replace(bound, output_tokens=cut)))
    for account in accounts:
        if not _is_held(db, account, record_id, needed):
            raise OverBudget(account, opened_at, needed, -1)
    return cut


def spend(db: Connection, record_id: str, currency: str, amount_pico: int, now_us: int) -> None:
    """A record was closed: its holds go, and what it is billed is spent in each of its budgets."""
    held, spent = take(db, record_id), nano_of(amount_pico)
    for account in accounts_of(db, record_id) if spent else ():
        # One that was opened before its budget was made may be in another currency.
        if account.budget.currency == currency:
            book(db, account.key, held.pop(account.key, 0), spent)
            raise_reached(db, account, spent, now_us)
    for window, nano in held.items():
        book(db, window, nano, 0)


def _is_held(db: Connection, account: Account, record_id: str, nano: int) -> bool:
    """Whether it fits was looked at before; that it does is the statement's own condition."""
    budget_id, starts_at = account.key
    window = {"budget_id": budget_id, "starts_at": starts_at, "nano": nano}
    if db.execute(_HOLD, window | {"limit_nano": account.budget.limit_nano}).rowcount != 1:
        return False
    db.execute(_NOTE, window | {"record_id": record_id})
    return True


_HOLD = """
UPDATE budget_window SET held_nano = held_nano + :nano
WHERE budget_id = :budget_id AND starts_at = :starts_at
  AND :limit_nano - spent_nano - held_nano >= :nano
"""

_NOTE = """
INSERT INTO budget_hold (record_id, budget_id, starts_at, nano)
VALUES (:record_id, :budget_id, :starts_at, :nano)
"""
