"""What clients are told when a budget has no room for them."""

from __future__ import annotations

from gateway.budgets.holds import OtherCurrency, OverBudget
from gateway.budgets.refusals import HELD_RETRY_S, other_currency, over_budget
from gateway.budgets.rows import Account, Budget
from gateway.budgets.windows import Kind, Window

S = 1_000_000
NANO = 10**9


def account(
    ends_at: int | None, *, spent: int = 0, held: int = 0, period: Kind = "daily"
) -> Account:
    budget = Budget("bg_1", "tn_1", "key", "key_1", "m", period, "EUR", 10 * NANO, (), 0)
    return Account(budget, Window(0, ends_at), spent, held)


def test_a_window_that_is_spent_says_when_it_starts_anew() -> None:
    found = account(86_400 * S, spent=9_500_000_000)
    refusal = over_budget(OverBudget(found, 86_000 * S + 1, 2 * NANO, 40))
    assert refusal.row.status == 429
    assert refusal.code == "insufficient_quota"
    assert refusal.retry_after_s == 400
    assert refusal.message == (
        "the budget bg_1 (daily, of the key, m) has 0.5 EUR left, and this request may cost 2; "
        "with max_tokens of at most 40 it fits; it starts anew at 1970-01-02T00:00:00Z"
    )


def test_what_is_only_held_is_soon_back() -> None:
    refusal = over_budget(OverBudget(account(86_400 * S, held=9 * NANO), 0, 2 * NANO, -1))
    assert refusal.retry_after_s == HELD_RETRY_S
    assert refusal.message.endswith("more is left when requests that run have ended")


def test_a_total_does_not_start_anew() -> None:
    spent = account(None, spent=11 * NANO, period="total")
    refusal = over_budget(OverBudget(spent, 0, 2 * NANO, -1))
    assert refusal.retry_after_s is None
    assert refusal.message == (
        "the budget bg_1 (total, of the key, m) has 0 EUR left, and this request may cost 2"
    )


def test_what_is_more_than_the_whole_limit_need_not_be_tried_again() -> None:
    refusal = over_budget(OverBudget(account(86_400 * S), 0, 11 * NANO, 7))
    assert refusal.retry_after_s is None
    assert refusal.message.endswith("of at most 7 it fits; its whole limit is 10")


def test_another_currency_is_named() -> None:
    refusal = other_currency(OtherCurrency(account(None).budget, "USD"))
    assert (refusal.row.status, refusal.param) == (403, "model")
    assert "priced in USD" in refusal.message
    assert "bg_1 is in EUR" in refusal.message
