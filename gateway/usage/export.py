"""An export: a selection of the ledger in one of four forms, as bytes that come piece by piece.

It's a function of the selection, the form and the names in it, and of nothing else: the same give
the same bytes, on every store. What it adds up to is known once all of it was taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from gateway.store.address import Database
from gateway.usage import charges, csv_text, focus, records
from gateway.usage.calendar import seconds
from gateway.usage.charge import Charge
from gateway.usage.focus_columns import COSTS, Row, Version, columns
from gateway.usage.names import Names
from gateway.usage.parquet import need_pyarrow, parquet
from gateway.usage.records import Record
from gateway.usage.selection import Selection
from gateway.usage.totals import Totals

Format = Literal["csv", "jsonl", "focus", "parquet"]
Granularity = Literal["hour", "request"]

FORMATS: tuple[Format, ...] = ("csv", "jsonl", "focus", "parquet")
VERSIONS: tuple[Version, ...] = ("1.2", "1.4")
GRANULARITIES: tuple[Granularity, ...] = ("hour", "request")


@dataclass(frozen=True, slots=True)
class Form:
    """What an export looks like. Version and granularity are FOCUS's, as CSV or Parquet."""

    format: Format = "csv"
    focus_version: Version = "1.2"
    granularity: Granularity = "hour"

    @property
    def is_focus(self) -> bool:
        """Whether rows are charges; else they're records."""
        return self.format in ("focus", "parquet")

    @property
    def suffix(self) -> str:
        """How a file of it is called at the end."""
        if not self.is_focus:
            return self.format
        rows = "-requests" if self.granularity == "request" else ""
        kind = "csv" if self.format == "focus" else "parquet"
        return f"focus-{self.focus_version}{rows}.{kind}"


class Export:
    """To be iterated once, from any one thread at a time. Raises StoreUnavailable or NoParquet."""

    def __init__(self, database: Database, selection: Selection, form: Form, names: Names) -> None:
        if form.format == "parquet":
            need_pyarrow()
        self.selection = selection
        self.form = form
        self.totals = Totals()
        self._database = database
        self._names = names

    def __iter__(self) -> Iterator[bytes]:
        match self.form.format:
            case "csv":
                yield records.csv_header()
                yield from map(records.as_csv, self._records())
            case "jsonl":
                yield from map(records.as_jsonl, self._records())
            case "focus":
                shape = columns(self.form.focus_version)
                yield csv_text.header(shape)
                yield from map(csv_text.encoder(shape), self._rows())
            case "parquet":
                rows = chain.from_iterable(self._rows())
                yield from parquet(rows, columns(self.form.focus_version), self._footer)

    def _records(self) -> Iterator[list[Record]]:
        for page in records.pages(self._database, self.selection):
            for record in page:
                self._count_record(record)
            yield page

    def _rows(self) -> Iterator[list[Row]]:
        read = charges.by_hour if self.form.granularity == "hour" else charges.by_record
        for some in read(self._database, self.selection):
            for charge in some:
                self._count_charge(charge)
            yield [focus.row(charge, self._names, self.form.focus_version) for charge in some]

    def _count_record(self, record: Record) -> None:
        totals, currency = self.totals, records.value(record, "currency")
        seq, at_us = records.value(record, "seq"), records.value(record, "charge_at")
        amount, at_list = records.value(record, "amount"), records.value(record, "list_amount")
        totals.add_row(seq, seq, at_us)
        totals.add_cost(currency, "amount", amount)
        totals.add_cost(currency, "list_amount", amount if at_list is None else at_list)
        totals.add_price(records.price(record))

    def _count_charge(self, charge: Charge) -> None:
        totals = self.totals
        totals.add_row(charge.first_seq, charge.last_seq, charge.billed_us)
        for column in COSTS:
            at_list = column == "ListCost"
            pico = charge.list_amount_pico if at_list else charge.amount_pico
            totals.add_cost(charge.currency, column, pico)
        totals.add_price(charge.price())

    def _footer(self) -> dict[str, str]:
        return {
            "focus_version": self.form.focus_version,
            "granularity": self.form.granularity,
            "period_start": seconds(self.selection.start_us),
            "period_end": seconds(self.selection.end_us),
            "seq_bound": str(self.selection.bound),
            "price_table_sha256": self.totals.price_table_sha256(),
        }
