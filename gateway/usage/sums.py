"""The hourly sums of usage, added up: by bucket, and by what else is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gateway.store.sql import Connection
from gateway.usage.calendar import Span

Grouped = Literal["model", "project_id", "api_key_id"]

MOST_VALUES = 64  # of one filter

_HALF = 1_000_000  # SQLite's sum() overflows at 9 million units, so it sums two halves
_COLUMNS: dict[Grouped, str] = {
    "model": "model_id",
    "project_id": "project_id",
    "api_key_id": "api_key_id",
}


class Sums(NamedTuple):
    """What was used in a bucket; "" is what isn't there, or isn't grouped by."""

    bucket: int  # so many widths since 1970
    model: str
    project_id: str
    api_key_id: str
    currency: str
    requests: int
    input_tokens: int
    cached_input_tokens: int  # part of the input tokens
    output_tokens: int
    amount_pico: int
    list_amount_pico: int


@dataclass(frozen=True, slots=True)
class Filters:
    """Whose usage; of several, any. Empty: all."""

    tenant_id: str
    models: tuple[str, ...] = ()
    project_ids: tuple[str, ...] = ()
    api_key_ids: tuple[str, ...] = ()
    project_id: str | None = None  # the only one that may be seen


def sums_of(
    db: Connection,
    filters: Filters,
    group_by: frozenset[Grouped],
    span: Span,
    width_us: int,
    most: int,
) -> tuple[list[int], list[Sums]]:
    """The first buckets with usage in a period, one more than `most`, and the sums of `most`."""
    where, values = _where(filters)
    values |= {"from_us": span[0], "end_us": span[1], "width_us": width_us}
    found = db.execute(_BUCKETS.format(where=where), values | {"most": most + 1}).fetchall()
    numbers = [int(number) for (number,) in found]
    if not numbers:
        return [], []
    last = numbers[:most][-1]
    values |= {"end_us": min(span[1], (last + 1) * width_us), "half": _HALF}
    columns = {
        name: f"r.{column}" if name in group_by else "cast('' AS TEXT)"
        for name, column in _COLUMNS.items()
    }
    rows = db.execute(_SUMS.format(where=where, **columns), values).fetchall()
    return numbers, sorted(map(_sums, rows))


def _sums(row: Sequence[object]) -> Sums:
    bucket, model, project_id, api_key_id, currency, *numbers = row
    requests, input_, cached, output, high, low, list_high, list_low = map(_whole, numbers)
    return Sums(
        _whole(bucket),
        str(model),
        str(project_id),
        str(api_key_id),
        str(currency),
        requests,
        input_,
        cached,
        output,
        high * _HALF + low,
        list_high * _HALF + list_low,
    )


def _whole(number: object) -> int:
    """PostgreSQL sums to a Decimal."""
    return int(number)  # type: ignore[call-overload, no-any-return]


def _where(filters: Filters) -> tuple[str, dict[str, object]]:
    """Conditions on a row `r`, and their parameters."""
    values: dict[str, object] = {"tenant_id": filters.tenant_id}
    parts = []
    for column, wanted in (
        ("model_id", filters.models),
        ("project_id", filters.project_ids),
        ("api_key_id", filters.api_key_ids),
    ):
        if wanted:
            names = {f"{column}_{i}": value for i, value in enumerate(_padded(wanted))}
            values |= names
            parts.append(f"AND r.{column} IN ({', '.join(f':{name}' for name in names)})")
    if filters.project_id is not None:
        values["own_project"] = filters.project_id
        parts.append("AND r.project_id = :own_project")
    return " ".join(parts), values


def _padded(values: tuple[str, ...]) -> tuple[str, ...]:
    """A power of two of them, so that there are few different statements to prepare."""
    size = 1 << (len(values) - 1).bit_length()
    return values + values[-1:] * (size - len(values))


_FROM = """
FROM usage_rollup r
WHERE r.tenant_id = :tenant_id AND r.hour_at >= :from_us AND r.hour_at < :end_us {where}
"""

_BUCKETS = f"""
SELECT DISTINCT r.hour_at / :width_us AS bucket {_FROM} ORDER BY bucket LIMIT :most
"""

_SUMS = f"""
SELECT r.hour_at / :width_us, {{model}}, {{project_id}}, {{api_key_id}}, r.currency,
  sum(r.requests), sum(r.input_tokens), sum(r.cached_input_tokens), sum(r.output_tokens),
  sum(r.amount_pico / :half), sum(r.amount_pico % :half),
  sum(r.list_amount_pico / :half), sum(r.list_amount_pico % :half)
{_FROM} GROUP BY 1, 2, 3, 4, 5
"""
