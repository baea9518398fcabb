"""One row for each closed record, billed or not, as CSV or JSON lines.

Rows come in the order of (charge_at, seq), read a page at a time: memory stays bounded, and a slow
download holds no snapshot open. Amounts and prices are exact decimal strings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.prices import format_pico, format_price
from gateway.store.address import Database
from gateway.store.reader import read
from gateway.store.sql import Connection
from gateway.usage import csv_text
from gateway.usage.calendar import microseconds
from gateway.usage.selection import Selection

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
    "seq",
    "kind",
    "corrects",
    "reason",
    "project_id",
    "subject",
    "price_version_id",
    "list_price_version_id",
    "list_amount",
    "list_input_price_per_1m",
    "list_cached_input_price_per_1m",
    "list_output_price_per_1m",
    "attempts",
    "config_hash",
)

_PAGE_ROWS = 1000


class Record:
    """A record as it lies in the store, by the names of its columns."""

    __slots__ = ("_values",)

    def __init__(self, values: tuple[Any, ...]) -> None:
        self._values = dict(zip(_STORED, values, strict=True))

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def price(self) -> tuple[str | int | None, ...]:
        """What its tokens cost, and by which version of which price."""
        return tuple(self._values[name] for name in _PRICE)


def pages(database: Database, selection: Selection) -> Iterator[list[Record]]:
    """Up to a thousand records at a time, from any thread. Raises StoreUnavailable."""
    columns = ", ".join(f"r.{name}" for name in _STORED)
    statement = _PAGE.format(columns=columns, where=selection.where())

    def query(db: Connection) -> list[tuple[Any, ...]]:
        after_us, after_seq = after
        place = {"after_us": after_us, "after_seq": after_seq, "rows": _PAGE_ROWS}
        return db.execute(statement, selection.values() | place).fetchall()

    after = (selection.start_us, -1)
    while rows := read(database, query):
        page = [Record(row) for row in rows]
        yield page
        after = (page[-1]["charge_at"], page[-1]["seq"])


def csv_header() -> bytes:
    """The names of the columns."""
    return csv_text.lines([COLUMNS])


def as_csv(records: list[Record]) -> bytes:
    """Rows of a CSV file."""
    return csv_text.lines([_in_csv(value) for value in _row(record).values()] for record in records)


def as_jsonl(records: list[Record]) -> bytes:
    """An object a line."""
    return msgspec.json.Encoder().encode_lines([_row(record) for record in records])


def _row(record: Record) -> Row:
    known = record["input_tokens"] is not None
    return {
        "record_id": record["id"],
        "request_id": record["request_id"],
        "charge_at": microseconds(record["charge_at"]),
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
        "seq": record["seq"],
        "kind": record["kind"],
        "corrects": record["corrects"],
        "reason": record["reason"],
        "project_id": record["project_id"],
        "subject": record["subject"],
        "price_version_id": record["price_version_id"],
        "list_price_version_id": record["list_price_version_id"],
        "list_amount": _maybe(format_pico, record["list_amount_pico"]),
        "list_input_price_per_1m": _maybe(format_price, record["list_input_price_pico"]),
        "list_cached_input_price_per_1m": _maybe(
            format_price, record["list_cached_input_price_pico"]
        ),
        "list_output_price_per_1m": _maybe(format_price, record["list_output_price_pico"]),
        "attempts": record["attempts"],
        "config_hash": record["config_hash"],
    }


def _maybe(tell: Any, number: int | None) -> str | None:
    return None if number is None else tell(number)


def _in_csv(value: str | int | bool | None) -> str | int | None:
    return str(value).lower() if isinstance(value, bool) else value


_STORED = (
    "id",
    "request_id",
    "charge_at",
    "tenant_id",
    "model_id",
    "api_key_id",
    "operation",
    "outcome",
    "billable",
    "bill_reason",
    "usage_source",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "currency",
    "amount_pico",
    "input_price_pico",
    "cached_input_price_pico",
    "output_price_pico",
    "seq",
    "kind",
    "corrects",
    "reason",
    "project_id",
    "subject",
    "price_version_id",
    "list_price_version_id",
    "list_amount_pico",
    "list_input_price_pico",
    "list_cached_input_price_pico",
    "list_output_price_pico",
    "attempts",
    "config_hash",
)

_PRICE = (
    "model_id",
    "currency",
    "price_version_id",
    "input_price_pico",
    "cached_input_price_pico",
    "output_price_pico",
    "list_price_version_id",
    "list_input_price_pico",
    "list_cached_input_price_pico",
    "list_output_price_pico",
)

# Walks the index of (tenant and) time; only records of one microsecond are sorted.
_PAGE = """
SELECT {columns} FROM usage_record r
WHERE r.charge_at >= :after_us AND (r.charge_at, r.seq) > (:after_us, :after_seq) AND {where}
ORDER BY r.charge_at, r.seq LIMIT :rows
"""
