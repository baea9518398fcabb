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
    ends_at = account.window.ends_at
    if not fault.is_spent:
        told.append("more is left when requests that run have ended")
        return InsufficientQuota("; ".join(told), retry_after_s=HELD_RETRY_S)
    if ends_at is None:
        return InsufficientQuota("; ".join(told))
    told.append(f"it starts anew at {moment(ends_at)}")
    wait_s = -((fault.at_us - ends_at) // US_PER_S)
    return InsufficientQuota("; ".join(told), retry_after_s=max(wait_s, 1))


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
