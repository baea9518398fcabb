"""What a request may cost at most is held in its budgets' windows, and given back when it ends.

All of it runs inside the ledger's own transactions: the hold beside the open row, the settlement
beside the closing one. So a hold lasts exactly as long as its record is open, whoever is killed
when; and what a window has spent is the sum of its records' amounts, each rounded up to a nano.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Literal, NamedTuple

from gateway.budgets.accounts import Accounts, Counted
from gateway.budgets.alerts import raise_reached
from gateway.budgets.bounds import LEAST_OUTPUT, Bound, most_pico, nano_of, output_within
from gateway.budgets.rows import Account, Budget
from gateway.prices import TokenPrices
from gateway.store.sql import Connection


class OverBudget(Exception):
    """A request doesn't fit into a budget. Its whole transaction is to be taken back."""

    def __init__(
        self, account: Account, at_us: int, needed_nano: int, output_that_fits: int
    ) -> None:
        super().__init__(account.budget.id)
        self.account = copy(account)  # as it is now
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


class Asked(NamedTuple):
    """An open record that is to hold the most it can cost; times in microseconds UTC."""

    record_id: str
    counted: Counted
    opened_at: int
    charge_at: int
    prices: TokenPrices
    bound: Bound


def hold(accounts: Accounts, asked: Asked) -> int | None:
    """Hold the most that an open record can cost in all its budgets, or in none.

    Returns to how many tokens its answer must be cut, where the client named no limit and its
    model's own doesn't fit; else None. Raises OverBudget or OtherCurrency.
    """
    prices, bound = asked.prices, asked.bound
    needed, cut = nano_of(most_pico(prices, bound)), None
    found = accounts.of(asked.counted, asked.charge_at) if needed else []
    short = []
    for account in found:
        if account.budget.currency != prices.currency:
            raise OtherCurrency(account.budget, prices.currency)
        if account.left_nano < needed:
            short.append(account)
    if short:
        tightest = min(short, key=lambda account: account.left_nano)
        cut = output_within(tightest.left_nano, prices, bound)
        if not bound.is_default or cut < min(LEAST_OUTPUT, bound.output_tokens):
            raise OverBudget(tightest, asked.opened_at, needed, cut)
        needed = nano_of(most_pico(prices, bound._replace(output_tokens=cut)))
    for account in found:
        accounts.hold(account, asked.record_id, needed)
    return cut


class Spent(NamedTuple):
    """What a closed record is billed."""

    record_id: str
    counted: Counted
    charge_at: int
    currency: str
    amount_pico: int


def spend(db: Connection, closed: Sequence[Spent], now_us: int) -> None:
    """Records were closed: their holds go, and what each is billed is spent in its budgets."""
    accounts = Accounts(db)
    accounts.take_back([one.record_id for one in closed])
    for one in sorted(closed, key=lambda one: one.charge_at):
        spent = nano_of(one.amount_pico)
        for account in accounts.of(one.counted, one.charge_at) if spent else ():
            # One that was opened before its budget was made may be in another currency.
            if account.budget.currency == one.currency:
                raise_reached(db, account, spent, now_us)
                account.spent_nano += spent
    accounts.save()
