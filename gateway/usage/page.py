"""A tenant's own usage, shaped like OpenAI's usage page, with the amount it was billed.

Only settled, billable records count. Buckets are whole UTC hours or days, and only those with usage
appear; a period that starts inside a bucket counts what lies in the period.
"""

from __future__ import annotations

from itertools import groupby
from typing import Literal

import msgspec

from gateway.prices import format_pico
from gateway.store.address import Database
from gateway.store.reader import read

BucketWidth = Literal["1h", "1d"]

_WIDTH_S: dict[BucketWidth, int] = {"1h": 3600, "1d": 86_400}
_US_PER_S = 1_000_000
_SPLIT = 1_000_000  # SQLite's sum() overflows at 9 million units, so it sums two halves

# bucket number, model, currency, tokens: input, cached input, output, requests, amount: high, low
_Sums = tuple[int, str, str, int, int, int, int, int, int]


class Amount(msgspec.Struct, frozen=True):
    """Money: an exact decimal string, and its ISO 4217 currency."""

    value: str
    currency: str


class Result(msgspec.Struct, frozen=True, tag_field="object", tag="bulkhead.usage.result"):
    """What one model used within a bucket."""

    model: str
    input_tokens: int
    input_cached_tokens: int
    input_uncached_tokens: int
    output_tokens: int
    num_model_requests: int
    amount: Amount


class Bucket(msgspec.Struct, frozen=True, tag_field="object", tag="bucket"):
    """One hour or day; times in Unix seconds, the end exclusive."""

    start_time: int
    end_time: int
    results: list[Result]


class UsagePage(msgspec.Struct, frozen=True, tag_field="object", tag="page"):
    """All buckets with usage, in order. There is always one page."""

    data: list[Bucket]
    has_more: bool = False
    next_page: str | None = None


def usage_page(
    database: Database, tenant_id: str, start_us: int, end_us: int, bucket: BucketWidth
) -> UsagePage:
    """A tenant's usage in [start_us, end_us), microseconds UTC. Raises StoreUnavailable."""
    width_s = _WIDTH_S[bucket]
    values = {
        "tenant_id": tenant_id,
        "start_us": start_us,
        "end_us": end_us,
        "width_us": width_s * _US_PER_S,
        "split": _SPLIT,
    }
    rows = read(database, lambda db: db.execute(_SUMS, values).fetchall())
    return UsagePage(_buckets(rows, width_s))


def _buckets(rows: list[_Sums], width_s: int) -> list[Bucket]:
    return [
        Bucket(number * width_s, (number + 1) * width_s, [_result(row) for row in group])
        for number, group in groupby(rows, key=lambda row: row[0])
    ]


def _result(row: _Sums) -> Result:
    _, model, currency, input_, cached, output, requests, amount_high, amount_low = row
    return Result(
        model=model,
        input_tokens=input_,
        input_cached_tokens=cached,
        input_uncached_tokens=input_ - cached,
        output_tokens=output,
        num_model_requests=requests,
        amount=Amount(format_pico(amount_high * _SPLIT + amount_low), currency),
    )


_SUMS = """
SELECT charge_at / :width_us AS bucket, model_id, currency,
  sum(input_tokens), sum(cached_input_tokens), sum(output_tokens), count(*),
  sum(amount_pico / :split), sum(amount_pico % :split)
FROM usage_record
WHERE tenant_id = :tenant_id AND charge_at >= :start_us AND charge_at < :end_us
  AND state = 'settled' AND billable = 1
GROUP BY charge_at / :width_us, model_id, currency
ORDER BY bucket, model_id, currency
"""
