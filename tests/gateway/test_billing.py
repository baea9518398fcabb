"""The billing policy: one row, one test."""

from __future__ import annotations

import pytest

from gateway.billing import POLICY, BillReason as Why, Outcome, billing
from gateway.prices import Usage

USED = Usage(10, 4, 3)
CASES = [
    # outcome, usage, a first token went out, billed, why
    (Outcome.COMPLETED, USED, True, True, Why.FULL_ANSWER),
    (Outcome.LENGTH, USED, True, True, Why.FULL_ANSWER),
    (Outcome.COMPLETED, Usage(0, 0, 0), False, True, Why.FULL_ANSWER),  # zero, said so: not missing
    (Outcome.COMPLETED, Usage(10, 0, 0), False, True, Why.FULL_ANSWER),
    (Outcome.COMPLETED, None, True, False, Why.USAGE_MISSING),
    (Outcome.LENGTH, None, True, False, Why.USAGE_MISSING),
    (Outcome.CLIENT_CANCELLED, USED, True, True, Why.DELIVERED_PART),
    (Outcome.CLIENT_CANCELLED, Usage(10, 4, 0), False, False, Why.NOTHING_DELIVERED),
    (Outcome.CLIENT_CANCELLED, None, False, False, Why.NOTHING_DELIVERED),
    (Outcome.CLIENT_CANCELLED, None, True, False, Why.USAGE_MISSING),
    (Outcome.UPSTREAM_ERROR, USED, True, False, Why.UPSTREAM_ERROR),
    (Outcome.UPSTREAM_ERROR, None, False, False, Why.UPSTREAM_ERROR),
    (Outcome.INTEGRITY_ABORT, USED, True, False, Why.INTEGRITY_ABORT),
    (Outcome.TIMEOUT, USED, True, False, Why.TIMEOUT),
    (Outcome.REFUSED, None, False, False, Why.REFUSED),
    (Outcome.CRASHED, USED, True, False, Why.CRASHED),
]


@pytest.mark.parametrize(("outcome", "usage", "delivered", "billable", "reason"), CASES)
def test_policy(
    outcome: Outcome, usage: Usage | None, delivered: bool, billable: bool, reason: Why
) -> None:
    assert billing(outcome, usage, delivered=delivered) == (billable, reason)


def test_every_outcome_has_a_policy_and_a_case() -> None:
    assert set(POLICY) == set(Outcome) == {case[0] for case in CASES}
