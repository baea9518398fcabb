"""What is billed and why: the policy as one table, apart from any database.

Who has received an answer, or a part of one, pays for it; what failed on our side costs nothing;
and usage that nobody could tell is never taken for zero or estimated.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from gateway.prices import Usage


class Outcome(StrEnum):
    """How a request ended."""

    COMPLETED = "completed"  # the model stopped by itself
    LENGTH = "length"  # the model reached its token limit
    CLIENT_CANCELLED = "client_cancelled"
    UPSTREAM_ERROR = "upstream_error"
    INTEGRITY_ABORT = "integrity_abort"
    TIMEOUT = "timeout"
    REFUSED = "refused"  # the host would not take it
    CRASHED = "crashed"


class UsageSource(StrEnum):
    """Who counted the tokens."""

    UPSTREAM_FINAL = "upstream_final"
    UPSTREAM_RUNNING = "upstream_running"
    GATEWAY_COUNT = "gateway_count"
    OPERATOR = "operator"  # who corrected a record
    NONE = "none"


class BillReason(StrEnum):
    """Why a record is billed, or isn't."""

    FULL_ANSWER = "full_answer"
    DELIVERED_PART = "delivered_part"
    NOTHING_DELIVERED = "nothing_delivered"
    USAGE_MISSING = "usage_missing"
    AMOUNT_OUT_OF_RANGE = "amount_out_of_range"  # more than 64 bits of pico-units
    UPSTREAM_ERROR = "upstream_error"
    INTEGRITY_ABORT = "integrity_abort"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    CRASHED = "crashed"
    CORRECTION = "correction"


POLICY: Mapping[Outcome, tuple[bool, BillReason]] = MappingProxyType(
    {
        Outcome.COMPLETED: (True, BillReason.FULL_ANSWER),
        Outcome.LENGTH: (True, BillReason.FULL_ANSWER),
        Outcome.CLIENT_CANCELLED: (True, BillReason.DELIVERED_PART),
        Outcome.UPSTREAM_ERROR: (False, BillReason.UPSTREAM_ERROR),
        Outcome.INTEGRITY_ABORT: (False, BillReason.INTEGRITY_ABORT),
        Outcome.TIMEOUT: (False, BillReason.TIMEOUT),
        Outcome.REFUSED: (False, BillReason.REFUSED),
        Outcome.CRASHED: (False, BillReason.CRASHED),
    }
)


def billing(
    outcome: Outcome, usage: Usage | None, *, delivered: bool = False
) -> tuple[bool, BillReason]:
    """Whether a request is billed, input and output alike, and why.

    `delivered` says whether a first token went out; it only tells, for a client that left while no
    usage is known, "nothing was delivered" from "the count is missing".
    """
    billable, reason = POLICY[outcome]
    if not billable:
        return False, reason
    if outcome is Outcome.CLIENT_CANCELLED and _nothing_delivered(usage, delivered):
        return False, BillReason.NOTHING_DELIVERED
    if usage is None:
        return False, BillReason.USAGE_MISSING
    return True, reason


def _nothing_delivered(usage: Usage | None, delivered: bool) -> bool:
    return not delivered if usage is None else usage.output_tokens == 0
