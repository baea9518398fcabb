"""One row for each closed record, billed or not, as CSV or JSON lines.

Rows come in the order of (charge_at, seq), read a page at a time: memory stays bounded, and a slow
download holds no snapshot open. Amounts and prices are exact decimal strings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from gateway.prices import format_pico, format_price
from gateway.store.address import Database
from gateway.store.reader import read
from gateway.store.sql import Connection
from gateway.usage import csv_text
from gateway.usage.calendar import microseconds
from gateway.usage.selection import Selection

Record = tuple[Any, ...]  # as it lies in the store, in the order of COLUMNS

_PAGE_ROWS = 1000
_price = lru_cache(maxsize=1024)(format_price)  # there are few


class Column(NamedTuple):
    """A column: what it's called, where it comes from, and how it's told if not as it is."""

    name: str
    sql: str
    tell: Callable[[Any], str | bool] | None = None


COLUMNS = (
    Column("record_id", "r.id"),
    Column("request_id", "r.request_id"),
    Column("charge_at", "r.charge_at", microseconds),
    Column("tenant_id", "r.tenant_id"),
    Column("model", "r.model_id"),
    Column("api_key_id", "r.api_key_id"),
    Column("operation", "r.operation"),
    Column("outcome", "r.outcome"),
    Column("billable", "r.billable", bool),
    Column("bill_reason", "r.bill_reason"),
    Column("usage_source", "r.usage_source"),
    Column("input_tokens", "r.input_tokens"),
    Column("cached_input_tokens", "r.cached_input_tokens"),
    Column("output_tokens", "r.output_tokens"),
    Column("total_tokens", "r.input_tokens + r.output_tokens"),
    Column("currency", "r.currency"),
    Column("amount", "r.amount_pico", format_pico),
    Column("input_price_per_1m", "r.input_price_pico", _price),
    Column("cached_input_price_per_1m", "r.cached_input_price_pico", _price),
    Column("output_price_per_1m", "r.output_price_pico", _price),
    Column("seq", "r.seq"),
    Column("kind", "r.kind"),
    Column("corrects", "r.corrects"),
    Column("reason", "r.reason"),
    Column("project_id", "r.project_id"),
    Column("subject", "r.subject"),
    Column("price_version_id", "r.price_version_id"),
    Column("list_price_version_id", "r.list_price_version_id"),
    Column("list_amount", "r.list_amount_pico", format_pico),
    Column("list_input_price_per_1m", "r.list_input_price_pico", _price),
    Column("list_cached_input_price_per_1m", "r.list_cached_input_price_pico", _price),
    Column("list_output_price_per_1m", "r.list_output_price_pico", _price),
    Column("attempts", "r.attempts"),
    Column("config_hash", "r.config_hash"),
)
HEADER = tuple(column.name for column in COLUMNS)
_TOLD = [(place, column.tell) for place, column in enumerate(COLUMNS) if column.tell]
_AT = {name: place for place, name in enumerate(HEADER)}


def pages(database: Database, selection: Selection) -> Iterator[list[Record]]:
    """Up to a thousand records at a time, from any thread. Raises StoreUnavailable."""
    columns = ", ".join(column.sql for column in COLUMNS)
    statement = _PAGE.format(columns=columns, where=selection.where())

    def query(db: Connection) -> list[Record]:
        after_us, after_seq = after
        place = {"after_us": after_us, "after_seq": after_seq, "rows": _PAGE_ROWS}
        return db.execute(statement, selection.values() | place).fetchall()

    after = (selection.start_us, -1)
    while page := read(database, query):
        yield page
        after = page[-1][_AT["charge_at"]], page[-1][_AT["seq"]]


def csv_header() -> bytes:
    """The names of the columns."""
    return csv_text.lines([HEADER])


def as_csv(records: Iterable[Record]) -> bytes:
    """Rows of a CSV file."""
    return csv_text.lines(map(_csv_row, records))


def as_jsonl(records: Iterable[Record]) -> bytes:
    """An object a line."""
    rows = [dict(zip(HEADER, _row(record), strict=True)) for record in records]
    return msgspec.json.Encoder().encode_lines(rows)


def value(record: Record, name: str) -> Any:
    """One of its columns, as it lies in the store."""
    return record[_AT[name]]


def price(record: Record) -> tuple[str | int | None, ...]:
    """What its tokens cost, and by which version of which price."""
    return tuple(record[place] for place in _PRICE)


def _row(record: Record) -> list[Any]:
    told = list(record)
    for place, tell in _TOLD:
        if told[place] is not None:
            told[place] = tell(told[place])
    return told


def _csv_row(record: Record) -> list[Any]:
    row = _row(record)
    row[_BILLABLE] = "true" if row[_BILLABLE] else "false"
    return row


_BILLABLE = _AT["billable"]
_PRICE = tuple(
    _AT[name]
    for name in (
        "model",
        "currency",
        "price_version_id",
        "input_price_per_1m",
        "cached_input_price_per_1m",
        "output_price_per_1m",
        "list_price_version_id",
        "list_input_price_per_1m",
        "list_cached_input_price_per_1m",
        "list_output_price_per_1m",
    )
)

# Walks the index of (tenant and) time; only records of one microsecond are sorted.
_PAGE = """
SELECT {columns} FROM usage_record r
WHERE r.charge_at >= :after_us AND (r.charge_at, r.seq) > (:after_us, :after_seq) AND {where}
ORDER BY r.charge_at, r.seq LIMIT :rows
"""
