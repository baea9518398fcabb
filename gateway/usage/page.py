"""A tenant's usage as a page of sums, shaped like OpenAI's, with what it was billed.

From the hourly sums that are written with each record: what is closed and billable, corrections
included. Buckets are hours or days, UTC, and only those with usage appear. Periods are whole hours:
one that begins or ends within an hour has all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import msgspec

from gateway.prices import format_pico
from gateway.store.address import Database
from gateway.store.reader import read
from gateway.usage.calendar import HOUR_US, US_PER_S
from gateway.usage.sums import Filters, Grouped, Sums, sums_of

BucketWidth = Literal["1h", "1d"]

WIDTH_US: dict[BucketWidth, int] = {"1h": HOUR_US, "1d": 24 * HOUR_US}
MOST_BUCKETS: dict[BucketWidth, int] = {"1h": 168, "1d": 31}


class Amount(msgspec.Struct, frozen=True):
    """Money: an exact decimal string, and its ISO 4217 currency."""

    value: str
    currency: str


class Result(msgspec.Struct, frozen=True, tag_field="object", tag="bulkhead.usage.result"):
    """What was used within a bucket, of what it's grouped by: null is all, or none."""

    model: str | None
    project_id: str | None
    api_key_id: str | None
    input_tokens: int
    input_cached_tokens: int
    input_uncached_tokens: int
    output_tokens: int
    num_model_requests: int
    amount: Amount
    list_amount: Amount  # where the list has no price in this currency: as charged


class Bucket(msgspec.Struct, frozen=True, tag_field="object", tag="bucket"):
    """One hour or day; times in Unix seconds, the end exclusive."""

    start_time: int
    end_time: int
    results: list[Result]


class UsagePage(msgspec.Struct, frozen=True, tag_field="object", tag="page"):
    """Buckets with usage, in order."""

    data: list[Bucket]
    has_more: bool = False
    next_page: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """What to sum up: times in microseconds UTC, the end exclusive."""

    filters: Filters
    start_us: int
    end_us: int
    width: BucketWidth = "1d"
    group_by: frozenset[Grouped] = frozenset({"model"})
    limit: int = 31  # buckets


def usage_page(database: Database, question: Question) -> tuple[list[Bucket], int | None]:
    """Up to so many buckets, and where the next one begins. Raises StoreUnavailable."""
    width_us = WIDTH_US[question.width]
    start_us = question.start_us - question.start_us % HOUR_US
    end_us = question.end_us + -question.end_us % HOUR_US
    numbers, rows = read(
        database,
        lambda db: sums_of(
            db,
            question.filters,
            question.group_by,
            (start_us, end_us),
            width_us,
            question.limit,
        ),
    )
    has_more = len(numbers) > question.limit
    next_us = max(numbers[-1] * width_us, start_us) if has_more else None
    return _buckets(rows, width_us // US_PER_S), next_us


def _buckets(rows: list[Sums], width_s: int) -> list[Bucket]:
    return [
        Bucket(number * width_s, (number + 1) * width_s, [_result(row) for row in group])
        for number, group in groupby(rows, key=lambda row: row.bucket)
    ]


def _result(row: Sums) -> Result:
    return Result(
        model=row.model or None,
        project_id=row.project_id or None,
        api_key_id=row.api_key_id or None,
        input_tokens=row.input_tokens,
        input_cached_tokens=row.cached_input_tokens,
        input_uncached_tokens=row.input_tokens - row.cached_input_tokens,
        output_tokens=row.output_tokens,
        num_model_requests=row.requests,
        amount=Amount(format_pico(row.amount_pico), row.currency),
        list_amount=Amount(format_pico(row.list_amount_pico), row.currency),
    )
