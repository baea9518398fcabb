"""The usage export: complete, exact, the same bytes each time."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import random
from collections.abc import AsyncIterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from gateway.billing import Outcome, UsageSource
from gateway.ledger import Ledger
from gateway.prices import Terms, TokenPrices, Usage
from gateway.record import Opening, Settlement
from gateway.store.connection import open_for_reading, open_for_writing
from gateway.store.migrate import migrate
from gateway.store.writer import Writer
from gateway.usage import records as exporting
from gateway.usage.export import Export, Form, Format
from gateway.usage.names import Names
from gateway.usage.records import HEADER
from gateway.usage.selection import Selection
from tests.gateway.accounts import add_key, add_tenant

END_US = 2_000_000_000_000_000
PRICES = TokenPrices("USD", input=22_500, cached_input=11_250, output=400_000)
NAMES = Names("issuer", "provider", "publisher", "host", "service")
FORMULA = '=HYPERLINK("http://evil","a,b")\r\n\''


class FakeClock:
    us = 1_700_000_000_000_000

    def now_us(self) -> int:
        return self.us


@pytest.fixture
async def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Path]:
    """A ledger of two tenants: 60 settled requests, one orphan, one that's still open."""
    monkeypatch.setattr(exporting, "_PAGE_ROWS", 7)  # so that pages end between equal times
    path = tmp_path / "store.db"
    migrate(path)
    with closing(open_for_writing(path)) as db:
        add_tenant(db)
        add_tenant(db, "globex", "tn_2")
        add_key(db)
    writer = Writer(path)
    writer.start()
    await fill(writer)
    yield path
    writer.close()


async def fill(writer: Writer) -> None:
    rng, clock = random.Random(7), FakeClock()
    ledger = Ledger(writer, clock, "boot_2")
    for number in range(60):
        record = await ledger.open(opening(f"req_{number}", f"tn_{rng.randint(1, 2)}"))
        clock.us += rng.choice([0, 0, 1, 999])
        await ledger.settle(record, settlement(rng))
    await Ledger(writer, clock, "boot_1").open(opening(FORMULA, "tn_1"))
    await ledger.reap_orphans(lambda boot: False)
    await ledger.open(opening("req_open", "tn_1"))


def opening(request_id: str, tenant_id: str) -> Opening:
    return Opening(
        request_id, tenant_id, "key_1", "chat", "m", "rev", Terms.of(PRICES), streamed=False
    )


def settlement(rng: random.Random) -> Settlement:
    input_tokens = rng.randint(0, 5000)
    usage = Usage(input_tokens, rng.randint(0, input_tokens), rng.randint(0, 500))
    return Settlement(
        outcome=rng.choice(list(Outcome)),
        usage=rng.choice([usage, usage, None]),
        usage_source=UsageSource.UPSTREAM_FINAL,
        status_code=200,
        finish_reason=None,
        host_id=None,
        first_token_at=None,
    )


def whole(
    path: Path,
    tenant_id: str | None,
    start_us: int = 0,
    end_us: int = END_US,
    fmt: Format = "csv",
) -> bytes:
    selection = Selection(start_us, end_us, END_US, tenant_id)
    return b"".join(Export(path, selection, Form(fmt), NAMES))


def rows(path: Path, tenant_id: str | None, start_us: int = 0) -> list[dict[str, str]]:
    text = whole(path, tenant_id, start_us).decode()
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


async def test_amounts_and_tokens_equal_the_ledgers_lines(path: Path) -> None:
    exported = rows(path, None)
    with closing(open_for_reading(path)) as db:
        pico, output = db.execute(
            "SELECT sum(amount_pico), sum(quantity) FILTER (WHERE token_class = 'output')"
            " FROM usage_line"
        ).fetchone()
    assert sum(Decimal(row["amount"]) for row in exported) * 10**12 == pico
    billed = [row for row in exported if row["billable"] == "true"]
    assert sum(int(row["output_tokens"]) for row in billed) == output
    for row in billed:
        cached = int(row["cached_input_tokens"])
        amount = (
            (int(row["input_tokens"]) - cached) * Decimal(row["input_price_per_1m"])
            + cached * Decimal(row["cached_input_price_per_1m"])
            + int(row["output_tokens"]) * Decimal(row["output_price_per_1m"])
        )
        assert Decimal(row["amount"]) * 10**6 == amount


@pytest.mark.parametrize("fmt", ["csv", "jsonl"])
async def test_the_same_period_gives_the_same_bytes(path: Path, fmt: Format) -> None:
    digests = {hashlib.sha256(whole(path, None, fmt=fmt)).digest() for _ in range(2)}
    assert len(digests) == 1


async def test_every_closed_record_is_there_once_in_order_and_no_open_one(path: Path) -> None:
    exported = rows(path, None)
    order = [(row["charge_at"], int(row["seq"])) for row in exported]
    assert order == sorted(set(order))
    assert {row["request_id"] for row in exported} == {FORMULA, *(f"req_{n}" for n in range(60))}


async def test_a_tenants_export_is_its_part_of_the_operators(path: Path) -> None:
    mine, theirs = rows(path, "tn_1"), rows(path, "tn_2")
    assert {row["tenant_id"] for row in mine} == {"tn_1"}
    assert {row["tenant_id"] for row in theirs} == {"tn_2"}
    together = sorted(mine + theirs, key=lambda row: (row["charge_at"], int(row["seq"])))
    assert together == rows(path, None)


async def test_an_orphan_is_a_row_that_costs_nothing(path: Path) -> None:
    (orphan,) = [row for row in rows(path, "tn_1") if row["request_id"] == FORMULA]
    assert (orphan["outcome"], orphan["billable"], orphan["amount"]) == ("crashed", "false", "0")
    assert orphan["input_tokens"] == orphan["total_tokens"] == ""


async def test_what_looks_like_a_formula_is_not_altered(path: Path) -> None:
    """These files are for programs; guarding spreadsheets would change the data."""
    text = whole(path, "tn_1", fmt="jsonl").decode()
    assert FORMULA in [row["request_id"] for row in rows(path, "tn_1")]
    assert FORMULA in [json.loads(line)["request_id"] for line in text.splitlines()]


async def test_both_formats_say_the_same(path: Path) -> None:
    text = whole(path, None, fmt="jsonl").decode()
    records = [json.loads(line) for line in text.splitlines()]
    assert [tuple(record) for record in records] == [HEADER] * len(records)
    as_csv = [{name: in_csv(value) for name, value in record.items()} for record in records]
    assert as_csv == rows(path, None)


def in_csv(value: str | int | bool | None) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


async def test_times_are_rfc_3339_and_prices_are_per_million_tokens(path: Path) -> None:
    first = rows(path, None)[0]
    assert first["charge_at"] == "2023-11-14T22:13:20.000000Z"
    prices = [first[f"{name}_price_per_1m"] for name in ("input", "cached_input", "output")]
    assert prices == ["0.0225", "0.01125", "0.4"]


async def test_the_period_is_start_inclusive_and_end_exclusive(path: Path) -> None:
    at_us = FakeClock.us
    header, *records = whole(path, None, at_us, at_us + 1).splitlines()
    assert records
    assert all(b"22:13:20.000000Z" in record for record in records)
    assert whole(path, None, at_us - 9, at_us) == header + b"\r\n"


async def test_an_empty_export_is_a_header_or_nothing(path: Path) -> None:
    assert whole(path, "tn_9", fmt="csv").decode() == ",".join(HEADER) + "\r\n"
    assert whole(path, "tn_9", fmt="jsonl") == b""


async def test_no_chunk_holds_more_than_a_page(path: Path) -> None:
    chunks = list(Export(path, Selection(0, END_US, END_US), Form("jsonl"), NAMES))
    assert max(chunk.count(b"\n") for chunk in chunks) == 7
