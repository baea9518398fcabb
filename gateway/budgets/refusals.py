"""What a client is told whose request doesn't fit into a budget: which, by how much, until when."""

from __future__ import annotations

import datetime

from gateway.budgets.holds import OtherCurrency, OverBudget
from gateway.budgets.rows import Account
from gateway.budgets.windows import EPOCH, US
from gateway.errors import CurrencyNotBudgeted, InsufficientQuota
from gateway.prices import format_nano

HELD_RETRY_S = 2  # what others hold is given back when they end
US_PER_S = 1_000_000


def over_budget(fault: OverBudget) -> InsufficientQuota:
    """The refusal of a request that doesn't fit."""
    account, budget = fault.account, fault.account.budget
    left = max(account.left_nano, 0)
    told = [
        f"the budget {named(account)} has {format_nano(left)} {budget.currency} left, and this "
        f"request may cost {format_nano(fault.needed_nano)}"
    ]
    if fault.output_that_fits > 0:
        told.append(f"with max_tokens of at most {fault.output_that_fits} it fits")
    match fault.reason:
        case "limit":
            told.append(f"its whole limit is {format_nano(budget.limit_nano)}")
            retry_after_s = None
        case "held":
            told.append("more is left when requests that run have ended")
            retry_after_s = HELD_RETRY_S
        case "spent":
            ends_at = account.window.ends_at
            told += [] if ends_at is None else [f"it starts anew at {moment(ends_at)}"]
            retry_after_s = None if ends_at is None else _seconds(ends_at - fault.at_us)
    return InsufficientQuota("; ".join(told), retry_after_s=retry_after_s)


def other_currency(fault: OtherCurrency) -> CurrencyNotBudgeted:
    """The refusal of a request that no budget in its currency covers."""
    budget = fault.budget
    return CurrencyNotBudgeted(
        f"this model is priced in {fault.currency}, and the budget {budget.id} is in "
        f"{budget.currency}, so it can't be held to it; use another model, or ask the operator",
        param="model",
    )


def named(account: Account) -> str:
    """A budget as its tenant knows it."""
    budget = account.budget
    model = f", {budget.model_id}" if budget.model_id else ""
    return f"{budget.id} ({budget.period}, of the {budget.scope_kind}{model})"


def moment(at_us: int) -> str:
    """A time for people and machines: RFC 3339, UTC, in seconds."""
    at = EPOCH + at_us * US
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _seconds(us: int) -> int:
    """Whole ones, rounded up; one at least."""
    return max(-(-us // US_PER_S), 1)
