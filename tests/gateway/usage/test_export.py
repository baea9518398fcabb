"""An export in all its forms: the same bytes for the same bound, exact sums, bounded memory."""

from __future__ import annotations

import io
import json
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gateway.store.address import Database, Postgres
from gateway.store.connection import open_for_reading, open_for_writing, transaction
from gateway.store.migrate import migrate
from gateway.store.reader import read
from gateway.usage import parquet
from gateway.usage.billing_periods import billing_periods
from gateway.usage.export import FORMATS, Export, Form, Format, Granularity
from gateway.usage.focus_columns import COSTS
from gateway.usage.selection import Selection, bound_of
from tests.gateway.usage.history import (
    DECEMBER,
    MICROSECONDS,
    NAMES,
    NOVEMBER,
    OCTOBER,
    TENANTS,
    History,
    fill,
)
from tests.gateway.usage.reading import FOCUS, RECORD, Sums, csv_rows, ledger_sums, sums
from tests.postgres import Server

EVER = 2**62


def new_store(folder: Path) -> Path:
    path = folder / "store.db"
    migrate(path)
    with closing(open_for_writing(path)) as db, transaction(db):
        fill(db)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_store(tmp_path_factory.mktemp("export"))


def export(
    path: Database,
    form: Form,
    bound: int = EVER,
    tenant: str | None = None,
    project: str | None = None,
) -> Export:
    return Export(path, Selection(OCTOBER, DECEMBER, bound, tenant, project), form, NAMES)


def exported(path: Path, fmt: Format, granularity: Granularity = "hour") -> bytes:
    return b"".join(export(path, Form(fmt, granularity=granularity)))


def sums_of_ledger(path: Path) -> Sums:
    with closing(open_for_reading(path)) as db:
        return ledger_sums(db)


@pytest.mark.parametrize("granularity", ["hour", "request"])
def test_all_forms_add_up_to_the_ledger(path: Path, granularity: Granularity) -> None:
    """To the pico-unit."""
    ledger = sums_of_ledger(path)
    assert set(ledger) == {"EUR", "USD"}
    focus = csv_rows(exported(path, "focus", granularity))
    assert sums(focus, *FOCUS) == ledger
    records = csv_rows(exported(path, "csv"))
    assert sums(records, *RECORD) == ledger
    lines = [json.loads(line) for line in exported(path, "jsonl").splitlines()]
    assert sums(lines, *RECORD) == ledger
    table = pq.read_table(io.BytesIO(exported(path, "parquet", granularity)))
    columns = ["BillingCurrency", "BilledCost", "ListCost"]
    rows = [{k: str(v) for k, v in row.items()} for row in table.select(columns).to_pylist()]
    assert sums(rows, *FOCUS) == ledger


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("granularity", ["hour", "request"])
def test_an_old_bound_gives_the_old_bytes(
    tmp_path: Path, fmt: Format, granularity: Granularity
) -> None:
    path, form = new_store(tmp_path), Form(fmt, granularity=granularity)
    bound = read(path, lambda db: bound_of(db, OCTOBER, DECEMBER))
    before = b"".join(export(path, form, bound))
    with closing(open_for_writing(path)) as db, transaction(db):
        later = History(db)
        later.number = 10_000
        later.requests(20, NOVEMBER)
        later.corrections(5, NOVEMBER + MICROSECONDS, NOVEMBER)
    assert b"".join(export(path, form, bound)) == before
    assert b"".join(export(path, form)) != before


@pytest.mark.parametrize("granularity", ["hour", "request"])
def test_both_databases_give_the_same_bytes(
    path: Path, tmp_path: Path, postgres_server: Server, granularity: Granularity
) -> None:
    other = Postgres(postgres_server.new_database(migrated=True))
    with closing(other), closing(open_for_writing(other)) as db, transaction(db):
        fill(db)
    with closing(other):
        for fmt in FORMATS:
            form = Form(fmt, "1.4", granularity)
            assert b"".join(export(other, form)) == b"".join(export(path, form))
        months = [billing_periods(each, OCTOBER, DECEMBER, "we") for each in (other, path)]
        assert months[0] == months[1]
        assert read(other, lambda db: bound_of(db, OCTOBER, NOVEMBER)) == read(
            path, lambda db: bound_of(db, OCTOBER, NOVEMBER)
        )


def test_the_bound_of_a_closed_month_is_the_one_it_was_closed_with(path: Path) -> None:
    with closing(open_for_writing(path)) as db:
        (closed_with,) = db.execute("SELECT seq_bound FROM billing_period").fetchone()
        (now,) = db.execute("SELECT seq FROM ledger_counter").fetchone()

    def bound(start_us: int, end_us: int) -> int:
        return read(path, lambda db: bound_of(db, start_us, end_us))

    assert now > closed_with
    assert bound(OCTOBER, NOVEMBER) == closed_with
    assert bound(OCTOBER + 5, OCTOBER + 6) == closed_with
    assert bound(OCTOBER, NOVEMBER + 1) == now
    assert bound(OCTOBER - 1, NOVEMBER) == now
    assert bound(0, 253_402_300_799_000_000) == now  # the end of time, as HTTP takes it


@pytest.mark.parametrize("fmt", ["csv", "focus"])
def test_tenants_and_projects_are_parts_of_the_whole(path: Path, fmt: Format) -> None:
    form, key = Form(fmt, granularity="request"), "tenant_id" if fmt == "csv" else "SubAccountId"
    everyone = csv_rows(b"".join(export(path, form)))
    parts = [csv_rows(b"".join(export(path, form, tenant=tenant))) for tenant in TENANTS]
    assert sum(map(len, parts)) == len(everyone)
    assert all(row in everyone for part in parts for row in part)
    project = csv_rows(b"".join(export(path, form, tenant="tn_1", project="pr_tn_1_a")))
    assert project
    assert {row["tenant_id" if fmt == "csv" else key] for row in project} == {
        "tn_1" if fmt == "csv" else "pr_tn_1_a"
    }
    assert not csv_rows(b"".join(export(path, form, tenant="tn_2", project="pr_tn_1_a")))


def test_parquet_has_exact_types_and_says_what_it_is(path: Path) -> None:
    made = export(path, Form("parquet", "1.4"))
    file = pq.ParquetFile(io.BytesIO(b"".join(made)))
    schema = file.schema_arrow
    assert schema.field("BilledCost").type == pa.decimal128(38, 12)
    assert schema.field("ListUnitPrice").type == pa.decimal128(38, 16)
    assert schema.field("ChargePeriodStart").type == pa.timestamp("us", tz="UTC")
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    told = {key.decode(): value.decode() for key, value in file.metadata.metadata.items()}
    assert (
        told
        | {
            "focus_version": "1.4",
            "granularity": "hour",
            "period_start": "2026-10-01T00:00:00Z",
            "period_end": "2026-12-01T00:00:00Z",
            "seq_bound": str(EVER),
            "price_table_sha256": made.totals.price_table_sha256(),
        }
        == told
    )


def test_parquet_and_csv_have_the_same_rows(path: Path) -> None:
    table = pq.read_table(io.BytesIO(exported(path, "parquet", "request"))).to_pylist()
    rows = csv_rows(exported(path, "focus", "request"))
    assert len(table) == len(rows)
    for one, other in zip(table, rows, strict=True):
        assert list(one) == list(other)
        for name in (*COSTS, "ListUnitPrice", "PricingQuantity", "ConsumedQuantity"):
            assert one[name] == Decimal(other[name])
        assert f"{one['ChargePeriodStart']:%Y-%m-%dT%H:%M:%SZ}" == other["ChargePeriodStart"]
        assert (one["ChargeClass"] or "") == other["ChargeClass"]


def test_row_groups_are_cut_by_rows_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "BATCH_ROWS", 7)
    monkeypatch.setattr(parquet, "GROUP_BATCHES", 3)
    file = pq.ParquetFile(io.BytesIO(exported(path, "parquet")))
    groups = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
    assert set(groups[:-1]) == {21}


def test_an_export_of_nothing_is_a_file_all_the_same(path: Path) -> None:
    for fmt in FORMATS:
        nothing = Export(path, Selection(0, 1, EVER), Form(fmt), NAMES)
        data = b"".join(nothing)
        assert nothing.totals.rows == 0
        assert nothing.totals.sums() == {}
        if fmt == "parquet":
            assert pq.read_table(io.BytesIO(data)).num_rows == 0


def test_totals_say_what_the_rows_add_up_to(path: Path) -> None:
    made = export(path, Form("focus"))
    rows = csv_rows(b"".join(made))
    totals, ledger = made.totals, sums_of_ledger(path)
    assert totals.rows == len(rows)
    assert totals.first_seq == min(int(row["x_FirstSeq"]) for row in rows)
    assert totals.last_seq == max(int(row["x_LastSeq"]) for row in rows)
    for currency, costs in totals.sums().items():
        assert list(costs) == sorted(COSTS)
        assert Decimal(costs["BilledCost"]) == ledger[currency][0]
        assert Decimal(costs["ListCost"]) == ledger[currency][1]


def test_which_months_are_final(path: Path) -> None:
    rows = csv_rows(billing_periods(path, OCTOBER, DECEMBER, "Acme Cloud GmbH"))
    found = [(row["BillingPeriodStart"], row["BillingPeriodStatus"]) for row in rows]
    assert found == [("2026-10-01T00:00:00Z", "Closed"), ("2026-11-01T00:00:00Z", "Open")]
    assert rows[0]["BillingPeriodEnd"] == rows[1]["BillingPeriodStart"]
    assert rows[0]["x_SeqBound"]
    assert not rows[1]["x_SeqBound"]
