"""Exports read again, and what they and the ledger add up to."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from gateway.store.sql import Connection

Sums = dict[str, tuple[Decimal, Decimal]]  # by currency: charged, at list prices

FOCUS = ("BillingCurrency", "BilledCost", "ListCost")
RECORD = ("currency", "amount", "list_amount")


def csv_rows(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline=""), strict=True))


def ledger_sums(db: Connection) -> Sums:
    rows = db.execute(
        "SELECT currency, sum(l.amount_pico), sum(coalesce(l.list_amount_pico, l.amount_pico))"
        " FROM usage_line l JOIN usage_record r ON r.id = l.record_id GROUP BY currency"
    ).fetchall()
    return {
        currency: (Decimal(amount) / 10**12, Decimal(at_list) / 10**12)
        for currency, amount, at_list in rows
    }


def sums(rows: Iterable[dict[str, Any]], currency: str, charged: str, at_list: str) -> Sums:
    found: Sums = {}
    for row in rows:
        one, other = found.get(row[currency], (Decimal(), Decimal()))
        listed = row[at_list] or row[charged]  # no list price: it counts at its own
        found[row[currency]] = (one + Decimal(row[charged]), other + Decimal(listed))
    return found
