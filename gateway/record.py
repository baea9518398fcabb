"""A usage record as values: what it is opened with, and what it is closed with. Pure.

Nobody changes one. They aren't frozen, since that makes them take thrice as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from gateway.billing import BillReason, Outcome, UsageSource, billing
from gateway.budgets.bounds import UNBOUND, Bound
from gateway.prices import Line, Terms, TokenPrices, Usage, lines

Operation = Literal["chat", "completion"]

HOUR_US = 3_600_000_000
_MAX_AMOUNT_PICO = 2**63 - 1


@dataclass(slots=True)
class Opening:
    """What is known when a request is admitted. Its terms hold to the end.

    Its caller has a key, or the subject of a token.
    """

    request_id: str
    tenant_id: str
    api_key_id: str | None
    operation: Operation
    model_id: str
    model_revision: str
    terms: Terms
    streamed: bool
    bound: Bound = UNBOUND  # the most it can use: what is held in budgets
    project_id: str | None = None
    subject: str | None = None
    config_hash: str | None = None

    @property
    def prices(self) -> TokenPrices:
        """What the caller pays."""
        return self.terms.agreed.prices


@dataclass(slots=True)
class OpenRecord:
    """A record that is in the ledger and waits to be settled; times in microseconds UTC."""

    id: str
    opening: Opening
    opened_at: int
    charge_at: int  # later than that if its month was closed already
    output_cut: int | None = None  # tokens to which a budget cuts an answer of no limit's own


@dataclass(slots=True)
class Settlement:
    """How a request ended. `usage` None: nobody could tell, which isn't zero.

    `claimed` is what its engine told, where that is more than the request could use; `usage` is
    then what it could.
    """

    outcome: Outcome
    usage: Usage | None
    usage_source: UsageSource
    status_code: int
    finish_reason: str | None
    host_id: str | None
    first_token_at: int | None  # microseconds UTC; None: no token went out
    attempts: int = 1
    claimed: Usage | None = None


class Bill(NamedTuple):
    """What a record is closed with; amounts in pico-units."""

    billable: bool
    reason: BillReason
    list_amount_pico: int | None  # None: the list is in another currency
    amount_pico: int = 0
    lines: tuple[Line, ...] = ()


def bill(opening: Opening, settlement: Settlement) -> Bill:
    """Whether a record is billed, why, and for what: no lines if it isn't."""
    usage = settlement.usage
    delivered = settlement.first_token_at is not None
    billable, reason = billing(settlement.outcome, usage, delivered=delivered)
    listed = opening.terms.list_prices
    nothing = None if listed is None else 0
    if not billable or usage is None:
        return Bill(False, reason, nothing)
    billed = lines(opening.model_id, opening.prices, usage, listed)
    amount = list_amount = 0
    for line in billed:
        amount += line.quantity * line.price_pico
        list_amount += line.quantity * (line.list_price_pico or 0)
    if max(amount, list_amount) > _MAX_AMOUNT_PICO:
        return Bill(False, BillReason.AMOUNT_OUT_OF_RANGE, nothing)
    return Bill(True, reason, nothing if listed is None else list_amount, amount, billed)


def rollup_of(record: OpenRecord) -> dict[str, object]:
    """The hour's sums that it counts in."""
    opening = record.opening
    return {
        "tenant_id": opening.tenant_id,
        "hour_at": record.charge_at - record.charge_at % HOUR_US,
        "model_id": opening.model_id,
        "api_key_id": opening.api_key_id or "",
        "project_id": opening.project_id or "",
        "currency": opening.prices.currency,
        "requests": 1,
    }


def closed_values(settlement: Settlement) -> dict[str, object]:
    """The columns that say how a request ended."""
    usage, claimed = settlement.usage, settlement.claimed
    return {
        "outcome": settlement.outcome,
        "usage_source": settlement.usage_source if usage else UsageSource.NONE,
        "status_code": settlement.status_code,
        "finish_reason": settlement.finish_reason,
        "host_id": settlement.host_id,
        "first_token_at": settlement.first_token_at,
        "attempts": settlement.attempts,
        "input_tokens": usage.input_tokens if usage else None,
        "cached_input_tokens": usage.cached_input_tokens if usage else None,
        "output_tokens": usage.output_tokens if usage else None,
        "claimed_input_tokens": claimed.input_tokens if claimed else None,
        "claimed_output_tokens": claimed.output_tokens if claimed else None,
    }


def opened_values(record: OpenRecord, boot_id: str) -> dict[str, object]:
    """The columns of an open record."""
    opening = record.opening
    agreed, listed = opening.terms.agreed, opening.terms.listed
    list_prices = opening.terms.list_prices
    return {
        "id": record.id,
        "request_id": opening.request_id,
        "tenant_id": opening.tenant_id,
        "api_key_id": opening.api_key_id,
        "project_id": opening.project_id,
        "subject": opening.subject,
        "operation": opening.operation,
        "model_id": opening.model_id,
        "model_revision": opening.model_revision,
        "streamed": opening.streamed,
        "boot_id": boot_id,
        "config_hash": opening.config_hash,
        "currency": agreed.prices.currency,
        "input_price_pico": agreed.prices.input,
        "cached_input_price_pico": agreed.prices.cached_input,
        "output_price_pico": agreed.prices.output,
        "price_version_id": agreed.version_id,
        "list_input_price_pico": list_prices and list_prices.input,
        "list_cached_input_price_pico": list_prices and list_prices.cached_input,
        "list_output_price_pico": list_prices and list_prices.output,
        "list_price_version_id": listed.version_id,
        "opened_at": record.opened_at,
    }
