"""A closed record is never changed: what was wrong with it is made good by a record of its own.

A correction is what has to be added, of each class of tokens, at the prices of the record that it
corrects; less than nothing, as a rule. It belongs to the same period if that is open, and else to
the one that is open now. Each function runs inside a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.billing import BillReason, UsageSource
from gateway.ids import new_id
from gateway.money.errors import MoneyError
from gateway.money.periods import is_closed
from gateway.prices import (
    MAX_TOKENS,
    TOKEN_CLASSES,
    Counts,
    TokenPrices,
    amounts_of,
    format_pico,
)
from gateway.store import audit
from gateway.store.records import Closed, Closing, Hour, close, insert_correction
from gateway.store.sql import Connection
from gateway.usage.calendar import HOUR_US

MAX_REASON_LEN = 500
MAX_PICO = 2**61  # of a class of tokens; three of them fit into 64 bits


class CorrectionError(MoneyError):
    """A record can't be corrected like that; the message says why."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a record should have been: None leaves a count as it is. Cached is part of input."""

    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    output_tokens: int | None = None


VOID = Usage(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Correction:
    """A correction that was made."""

    id: str
    corrects: str
    tenant_id: str
    currency: str
    amount_pico: int
    charge_at: int
    is_late: bool  # the period of what it corrects is closed

    @property
    def amount(self) -> str:
        """In units of the currency."""
        return format_pico(self.amount_pico)


def correct(
    db: Connection, record_id: str, should_be: Usage, reason: str, now_us: int
) -> Correction:
    """Make a record what it should have been, by a new one. Raises CorrectionError."""
    if not (0 < len(reason.strip()) <= MAX_REASON_LEN):
        raise CorrectionError(f"A correction needs a reason, of at most {MAX_REASON_LEN} letters.")
    record = _record(db, record_id)
    is_counts = _counts(db, record_id)
    delta = _delta(is_counts, _target(is_counts, should_be))
    if not any(delta):
        raise CorrectionError(f"{record_id} counts that already: nothing is to be corrected.")
    listed = _list_prices(record)
    amounts = amounts_of(_prices(record), delta)
    list_amounts = None if listed is None else amounts_of(listed, delta)
    if any(abs(amount) > MAX_PICO for amount in (*amounts, *(list_amounts or ()))):
        raise CorrectionError("That amount is too large for a record.")
    is_late = is_closed(db, record["charge_at"])
    found = Correction(
        id=new_id("ur"),
        corrects=record_id,
        tenant_id=record["tenant_id"],
        currency=record["currency"],
        amount_pico=sum(amounts),
        charge_at=now_us if is_late else record["charge_at"],
        is_late=is_late,
    )
    values = {
        "id": found.id,
        "request_id": new_id("cor"),
        "corrects": record_id,
        "reason": reason.strip(),
        "charge_at": found.charge_at,
        "now": now_us,
    }
    insert_correction(db, values)
    list_amount = None if list_amounts is None else sum(list_amounts)
    closed = _closed(record, found, delta, list_amount, now_us)
    close(db, [Closing(closed, _hour(record, found), requests=0)], now_us)
    told = {"corrects": record_id, "amount": found.amount, "reason": reason.strip()}
    audit.note(db, "record.corrected", "record", found.id, found.tenant_id, **told)
    return found


def _record(db: Connection, record_id: str) -> dict[str, Any]:
    row = db.execute(_RECORD, {"id": record_id}).fetchone()
    if row is None:
        raise CorrectionError(f"There is no record {record_id!r}.")
    record = dict(zip(_NAMES, row, strict=True))
    if record["kind"] != "request":
        raise CorrectionError(f"{record_id} is a correction: correct {record['corrects']} again.")
    if record["state"] == "open":
        raise CorrectionError(f"{record_id} is open: it can be corrected once it is closed.")
    return record


def _counts(db: Connection, record_id: str) -> Counts:
    """What is billed of a record by now, all its corrections counted in."""
    found = dict(db.execute(_COUNTS, {"id": record_id}).fetchall())
    first, second, third = (int(found.get(name, 0)) for name in TOKEN_CLASSES)
    return first, second, third


def _target(now: Counts, should_be: Usage) -> Counts:
    uncached, cached, output = now
    input_ = _or(should_be.input_tokens, uncached + cached)
    cached = _or(should_be.cached_input_tokens, min(cached, input_))
    output = _or(should_be.output_tokens, output)
    if not all(0 <= count <= MAX_TOKENS for count in (input_, cached, output)):
        raise CorrectionError(f"Token counts are between 0 and {MAX_TOKENS}.")
    if cached > input_:
        raise CorrectionError("Cached input tokens are part of the input tokens.")
    return input_ - cached, cached, output


def _or(given: int | None, now: int) -> int:
    return now if given is None else given


def _delta(now: Counts, target: Counts) -> Counts:
    return target[0] - now[0], target[1] - now[1], target[2] - now[2]


def _prices(record: Mapping[str, Any]) -> TokenPrices:
    return TokenPrices(
        record["currency"],
        record["input_price_pico"],
        record["cached_input_price_pico"],
        record["output_price_pico"],
    )


def _list_prices(record: Mapping[str, Any]) -> TokenPrices | None:
    if record["list_input_price_pico"] is None:
        return None
    return TokenPrices(
        record["currency"],
        record["list_input_price_pico"],
        record["list_cached_input_price_pico"],
        record["list_output_price_pico"],
    )


def _closed(
    record: Mapping[str, Any],
    found: Correction,
    delta: Counts,
    list_amount_pico: int | None,
    now_us: int,
) -> Closed:
    uncached, cached, output = delta
    return Closed(
        id=found.id,
        outcome=record["outcome"],
        billable=True,
        bill_reason=BillReason.CORRECTION,
        usage_source=UsageSource.OPERATOR,
        status_code=record["status_code"],
        finish_reason=None,
        host_id=record["host_id"],
        first_token_at=None,
        attempts=1,
        input_tokens=uncached + cached,
        cached_input_tokens=cached,
        output_tokens=output,
        claimed_input_tokens=None,
        claimed_output_tokens=None,
        ended_at=now_us,
        amount_pico=found.amount_pico,
        list_amount_pico=list_amount_pico,
    )


def _hour(record: Mapping[str, Any], found: Correction) -> Hour:
    """The hour's sums that it counts in. It is no request of its own."""
    return Hour(
        found.tenant_id,
        found.charge_at - found.charge_at % HOUR_US,
        record["model_id"],
        record["api_key_id"] or "",
        record["project_id"] or "",
        found.currency,
    )


_NAMES = (
    "id",
    "kind",
    "corrects",
    "state",
    "tenant_id",
    "api_key_id",
    "project_id",
    "model_id",
    "currency",
    "charge_at",
    "outcome",
    "status_code",
    "host_id",
    "input_price_pico",
    "cached_input_price_pico",
    "output_price_pico",
    "list_input_price_pico",
    "list_cached_input_price_pico",
    "list_output_price_pico",
)
_RECORD = f"SELECT {', '.join(_NAMES)} FROM usage_record WHERE id = :id"  # noqa: S608 - our names
_COUNTS = """
SELECT l.token_class, sum(l.quantity)
FROM usage_line AS l JOIN usage_record AS r ON r.id = l.record_id
WHERE r.id = :id OR r.corrects = :id
GROUP BY l.token_class
"""
