"""The usage export: one row for each closed record, as CSV (RFC 4180) or JSON lines.

Rows come in the order of (charge_at, id), read a page at a time: memory stays bounded, and a slow
download holds no snapshot open. Once the last record of a period is closed, the same period gives
the same bytes. Amounts and prices are exact decimal strings.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec

from gateway.prices import format_pico, format_price
from gateway.store.address import Database
from gateway.store.reader import read
from gateway.store.sql import Connection, dicts

Format = Literal["csv", "jsonl"]
Row = dict[str, str | int | bool | None]

COLUMNS = (
    "record_id",
    "request_id",
    "charge_at",
    "tenant_id",
    "model",
    "api_key_id",
    "operation",
    "outcome",
    "billable",
    "bill_reason",
    "usage_source",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "total_tokens",
    "currency",
    "amount",
    "input_price_per_1m",
    "cached_input_price_per_1m",
    "output_price_per_1m",
)

_PAGE_ROWS = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def export(
    database: Database, tenant_id: str | None, start_us: int, end_us: int, fmt: Format
) -> Iterator[bytes]:
    """The closed records charged in [start_us, end_us), microseconds UTC; None is every tenant.

    Yields chunks of up to a thousand rows, from any thread. Raises StoreUnavailable.
    """
    encode = _ENCODERS[fmt]
    if fmt == "csv":
        yield _csv([COLUMNS])
    after = (start_us, "")  # sorts before every id
    while page := read(database, _page_query(tenant_id, after, end_us)):
        yield encode([_row(record) for record in page])
        after = (page[-1]["charge_at"], page[-1]["id"])


def _page_query(
    tenant_id: str | None, after: tuple[int, str], end_us: int
) -> Callable[[Connection], list[dict[str, Any]]]:
    after_us, after_id = after
    values = {
        "tenant_id": tenant_id,
        "after_us": after_us,
        "after_id": after_id,
        "end_us": end_us,
        "rows": _PAGE_ROWS,
    }

    def query(db: Connection) -> list[dict[str, Any]]:
        return dicts(db.execute(_EVERYONE if tenant_id is None else _ONE_TENANT, values))

    return query


def _row(record: dict[str, Any]) -> Row:
    known = record["input_tokens"] is not None
    return {
        "record_id": record["id"],
        "request_id": record["request_id"],
        "charge_at": _rfc3339(record["charge_at"]),
        "tenant_id": record["tenant_id"],
        "model": record["model_id"],
        "api_key_id": record["api_key_id"],
        "operation": record["operation"],
        "outcome": record["outcome"],
        "billable": bool(record["billable"]),
        "bill_reason": record["bill_reason"],
        "usage_source": record["usage_source"],
        "input_tokens": record["input_tokens"],
        "cached_input_tokens": record["cached_input_tokens"],
        "output_tokens": record["output_tokens"],
        "total_tokens": record["input_tokens"] + record["output_tokens"] if known else None,
        "currency": record["currency"],
        "amount": format_pico(record["amount_pico"]),
        "input_price_per_1m": format_price(record["input_price_pico"]),
        "cached_input_price_per_1m": format_price(record["cached_input_price_pico"]),
        "output_price_per_1m": format_price(record["output_price_pico"]),
    }


def _rfc3339(us: int) -> str:
    moment = _EPOCH + timedelta(microseconds=us)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _csv(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _csv_rows(rows: list[Row]) -> bytes:
    return _csv([_csv_value(value) for value in row.values()] for row in rows)


def _csv_value(value: str | int | bool | None) -> str | int | None:
    return str(value).lower() if isinstance(value, bool) else value


def _jsonl_rows(rows: list[Row]) -> bytes:
    return msgspec.json.Encoder().encode_lines(rows)


_ENCODERS: dict[Format, Callable[[list[Row]], bytes]] = {
    "csv": _csv_rows,
    "jsonl": _jsonl_rows,
}

# Each walks the index of its order, so that no page is sorted or scanned twice.
_ONE_TENANT = """
SELECT * FROM usage_record
WHERE tenant_id = :tenant_id AND (charge_at, id) > (:after_us, :after_id) AND charge_at < :end_us
  AND state <> 'open'
ORDER BY charge_at, id LIMIT :rows
"""

_EVERYONE = """
SELECT * FROM usage_record
WHERE (charge_at, id) > (:after_us, :after_id) AND charge_at < :end_us AND state <> 'open'
ORDER BY charge_at, id LIMIT :rows
"""
