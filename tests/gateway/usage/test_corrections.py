"""Corrections as the ledger makes them: in all that tells of what was used."""

from __future__ import annotations

from contextlib import closing
from decimal import Decimal

from gateway.money import periods
from gateway.money.corrections import VOID, Usage as Correct, correct
from gateway.store.address import Database
from gateway.store.connection import open_for_writing, transaction
from gateway.usage.export import GRANULARITIES, Export, Form
from gateway.usage.page import Question, usage_page
from gateway.usage.selection import Selection
from gateway.usage.sums import Filters
from tests.gateway.usage.history import (
    DECEMBER,
    MICROSECONDS,
    NAMES,
    NOVEMBER,
    OCTOBER,
    TENANTS,
    History,
)
from tests.gateway.usage.reading import FOCUS, RECORD, Sums, csv_rows, ledger_sums, sums


def exported(database: Database, form: Form) -> list[dict[str, str]]:
    selection = Selection(OCTOBER, DECEMBER, 2**62)
    return csv_rows(b"".join(Export(database, selection, form, NAMES)))


def test_real_corrections_of_open_and_closed_months_are_in_all_of_it(database: Database) -> None:
    now_us = NOVEMBER + MICROSECONDS - 1
    with closing(open_for_writing(database)) as db:
        with transaction(db):
            history = History(db)
            history.directory()
            history.requests(60, OCTOBER)
            periods.close(db, OCTOBER, NOVEMBER + periods.GRACE_US)
            history.requests(60, NOVEMBER)
            ids = [record_id for record_id, *_ in history.billed]
            first, last = ids[:5], ids[-5:]
            for record_id in (*first, *last):
                correct(
                    db, record_id, Correct(output_tokens=0, cached_input_tokens=0), "so", now_us
                )
            for record_id in (first[0], last[0]):
                correct(db, record_id, VOID, "so be it", now_us)
        ledger = ledger_sums(db)
    for granularity in GRANULARITIES:
        form = Form("focus", "1.4", granularity)
        rows = exported(database, form)
        assert sums(rows, *FOCUS) == ledger
        late = [row for row in rows if row["ChargeClass"] == "Correction"]
        assert {row["x_CorrectedRecordId"] for row in late} == set(first)
        assert {row["BillingPeriodStart"] for row in late} == {"2026-11-01T00:00:00Z"}
        assert {row["ChargePeriodStart"][:7] for row in late} == {"2026-10"}
        same = [row for row in rows if row["x_CorrectedRecordId"] and not row["ChargeClass"]]
        assert {row["x_CorrectedRecordId"] for row in same} == set(last)
    records = exported(database, Form())
    assert sums(records, *RECORD) == ledger
    assert usage_sums(database) == ledger


def usage_sums(database: Database) -> Sums:
    found: Sums = {}
    for tenant in TENANTS:
        question = Question(Filters(tenant), OCTOBER, DECEMBER, limit=100)
        buckets, _ = usage_page(database, question)
        for result in (result for bucket in buckets for result in bucket.results):
            one, other = found.get(result.amount.currency, (Decimal(), Decimal()))
            amounts = Decimal(result.amount.value), Decimal(result.list_amount.value)
            found[result.amount.currency] = (one + amounts[0], other + amounts[1])
    return found
