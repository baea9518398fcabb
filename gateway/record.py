"""A usage record as values: what it is opened with, and what it is closed with. Pure.

Nobody changes one. They aren't frozen, since that makes them take thrice as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from gateway.billing import BillReason, Outcome, UsageSource, billing
from gateway.budgets.bounds import UNBOUND, Bound
from gateway.prices import Terms, TokenPrices, Usage, amounts_of, counts_of
from gateway.store.records import Closed, Closing, Hour, Opened

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


def bill(opening: Opening, settlement: Settlement) -> Bill:
    """Whether a record is billed, why, and how much."""
    usage = settlement.usage
    delivered = settlement.first_token_at is not None
    billable, reason = billing(settlement.outcome, usage, delivered=delivered)
    listed = opening.terms.list_prices
    nothing = None if listed is None else 0
    if not billable or usage is None:
        return Bill(False, reason, nothing)
    counts = counts_of(usage)
    amount = sum(amounts_of(opening.prices, counts))
    list_amount = 0 if listed is None else sum(amounts_of(listed, counts))
    if max(amount, list_amount) > _MAX_AMOUNT_PICO:
        return Bill(False, BillReason.AMOUNT_OUT_OF_RANGE, nothing)
    return Bill(True, reason, nothing if listed is None else list_amount, amount)


def hour_of(record: OpenRecord) -> Hour:
    """The hour's sums that it counts in."""
    opening = record.opening
    return Hour(
        opening.tenant_id,
        record.charge_at - record.charge_at % HOUR_US,
        opening.model_id,
        opening.api_key_id or "",
        opening.project_id or "",
        opening.prices.currency,
    )


def closing_of(record: OpenRecord, settlement: Settlement, ended_at: int) -> Closing:
    """How a record is closed, and what it is billed.

    Its values are plain ones, each of which SQLite's module would first have to adapt otherwise.
    """
    billable, reason, list_amount, amount = bill(record.opening, settlement)
    usage, claimed = settlement.usage, settlement.claimed
    closed = Closed(
        str(settlement.outcome),
        int(billable),
        str(reason),
        ended_at,
        settlement.first_token_at,
        usage.input_tokens if usage else None,
        usage.cached_input_tokens if usage else None,
        usage.output_tokens if usage else None,
        str(settlement.usage_source if usage else UsageSource.NONE),
        settlement.status_code,
        settlement.finish_reason,
        settlement.host_id,
        settlement.attempts,
        amount,
        list_amount,
        claimed.input_tokens if claimed else None,
        claimed.output_tokens if claimed else None,
        record.id,
    )
    return Closing(closed, hour_of(record) if billable else None)


def opened_of(record: OpenRecord, boot_id: str) -> Opened:
    """The columns of an open record, in their order: each request pays for it."""
    opening = record.opening
    agreed, listed = opening.terms.agreed, opening.terms.listed
    prices, list_prices = agreed.prices, opening.terms.list_prices
    return Opened(
        record.id,
        opening.request_id,
        opening.tenant_id,
        opening.api_key_id,
        opening.project_id,
        opening.subject,
        opening.operation,
        opening.model_id,
        opening.model_revision,
        int(opening.streamed),
        boot_id,
        opening.config_hash,
        prices.currency,
        prices.input,
        prices.cached_input,
        prices.output,
        agreed.version_id,
        list_prices.input if list_prices else None,
        list_prices.cached_input if list_prices else None,
        list_prices.output if list_prices else None,
        listed.version_id,
        record.opened_at,
    )
