"""FOCUS: what a validator says of both versions' files, and that every cost is exact."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from gateway.store.connection import open_for_writing, transaction
from gateway.store.migrate import migrate
from gateway.usage.billing_periods import billing_periods
from gateway.usage.export import Export, Form, Granularity
from gateway.usage.focus_columns import COSTS, Version, columns
from gateway.usage.selection import Selection
from tests.gateway.usage.history import DECEMBER, FORMULA, NAMES, NOVEMBER, OCTOBER, fill

EVER = 2**62
MANDATORY_12 = {
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ServiceCategory",
    "ServiceName",
}
Row = dict[str, str]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("focus") / "store.db"
    migrate(path)
    with closing(open_for_writing(path)) as db, transaction(db):
        fill(db)
    return path


def exported(path: Path, version: Version = "1.4", granularity: Granularity = "hour") -> bytes:
    form = Form("focus", version, granularity)
    return b"".join(Export(path, Selection(OCTOBER, DECEMBER, EVER), form, NAMES))


def rows_of(data: bytes) -> list[Row]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline=""), strict=True))


def validate(path: Path, dataset: str = "cost-and-usage") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "focus_data_toolkit", "validate", "--dataset"]
    supports = ["--supports", "SupportsUnitPricing"]
    return subprocess.run(
        [*command, dataset, *supports, str(path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("granularity", ["hour", "request"])
def test_a_validator_finds_nothing_wrong(
    path: Path, tmp_path: Path, granularity: Granularity
) -> None:
    file = tmp_path / "focus.csv"
    file.write_bytes(exported(path, granularity=granularity))
    said = validate(file)
    assert said.returncode == 0, said.stdout + said.stderr


def test_nor_in_parquet_or_in_the_billing_periods(path: Path, tmp_path: Path) -> None:
    selection = Selection(OCTOBER, DECEMBER, EVER)
    file = tmp_path / "focus.parquet"
    file.write_bytes(b"".join(Export(path, selection, Form("parquet", "1.4"), NAMES)))
    said = validate(file)
    assert said.returncode == 0, said.stdout + said.stderr
    file = tmp_path / "periods.csv"
    file.write_bytes(billing_periods(path, OCTOBER, DECEMBER, NAMES.issuer))
    said = validate(file, "billing-period")
    assert said.returncode == 0, said.stdout + said.stderr


def wrong_cost(row: Row) -> None:
    row["ListCost"] = str(Decimal(row["ListCost"]) + 1)


def wrong_unit(row: Row) -> None:
    row["PricingUnit"] = "1000000"


def wrong_time(row: Row) -> None:
    row["ChargePeriodStart"] = row["ChargePeriodStart"].replace("Z", "+00:00")


def wrong_category(row: Row) -> None:
    row["ChargeCategory"] = "Foo"


def wrong_currency(row: Row) -> None:
    row["BillingCurrency"] = "usd"


def unit_without_quantity(row: Row) -> None:
    row["ConsumedQuantity"] = ""


def unnamed_detail(row: Row) -> None:
    row["SkuPriceDetails"] = row["SkuPriceDetails"].replace("x_", "")


FAULTS = (
    wrong_cost,
    wrong_unit,
    wrong_time,
    wrong_category,
    wrong_currency,
    unit_without_quantity,
    unnamed_detail,
)


@pytest.mark.parametrize("plant", FAULTS)
def test_the_validator_would_find_it(
    path: Path, tmp_path: Path, plant: Callable[[Row], None]
) -> None:
    """Else the test above would mean nothing."""
    rows = rows_of(exported(path))[:3]
    plant(rows[1])
    file = tmp_path / "focus.csv"
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert validate(file).returncode == 1


@pytest.mark.parametrize("version", ["1.2", "1.4"])
@pytest.mark.parametrize("granularity", ["hour", "request"])
def test_each_cost_is_its_price_times_its_quantity_exactly(
    path: Path, version: Version, granularity: Granularity
) -> None:
    for row in rows_of(exported(path, version, granularity)):
        quantity = Decimal(row["PricingQuantity"])
        assert Decimal(row["ListUnitPrice"]) * quantity == Decimal(row["ListCost"])
        assert Decimal(row["ContractedUnitPrice"]) * quantity == Decimal(row["ContractedCost"])
        assert row["ContractedCost"] == row["BilledCost"] == row["EffectiveCost"]
        assert quantity * 10**6 == Decimal(row["ConsumedQuantity"])
        assert "E" not in "".join(row[cost] for cost in COSTS)


def test_hours_and_requests_add_up_to_the_same(path: Path) -> None:
    def sums(granularity: Granularity) -> dict[tuple[str, ...], Decimal]:
        found: dict[tuple[str, ...], Decimal] = {}
        keys = ("BillingAccountId", "SkuPriceId", "BillingCurrency", "ChargePeriodStart")
        for row in rows_of(exported(path, granularity=granularity)):
            key = tuple(row[name] for name in keys)
            found[key] = found.get(key, Decimal()) + Decimal(row["BilledCost"])
        return found

    assert sums("hour") == sums("request")


def test_the_versions_differ_in_who_is_called_what(path: Path) -> None:
    old, new = (rows_of(exported(path, version))[0] for version in ("1.2", "1.4"))
    assert (old["ProviderName"], old["PublisherName"]) == ("Acme Cloud", "Acme Models")
    assert (new["ServiceProviderName"], new["HostProviderName"]) == ("Acme Cloud", "Rack & Co")
    assert not {"ServiceProviderName", "HostProviderName"} & set(old)
    assert not {"ProviderName", "PublisherName", "PricingCurrencyEffectiveCost"} & set(new)
    assert old["InvoiceIssuerName"] == new["InvoiceIssuerName"] == "Acme Cloud GmbH"
    assert (old["RegionId"], old["RegionName"]) == ("eu", "Europe")
    for row in (old, new):
        custom = [name for name in row if name.startswith("x_")]
        assert list(row)[-len(custom) :] == custom


def test_a_correction_of_a_closed_month_is_a_correction(path: Path) -> None:
    rows = rows_of(exported(path))
    late = [row for row in rows if row["ChargeClass"] == "Correction"]
    same = [row for row in rows if row["x_CorrectedRecordId"] and not row["ChargeClass"]]
    assert late
    assert same
    for row in late:
        assert row["ChargePeriodStart"] < "2026-11" < row["BillingPeriodStart"]
    for row in same:
        assert row["ChargePeriodStart"][:7] == row["BillingPeriodStart"][:7]
    for row in late + same:
        assert Decimal(row["BilledCost"]) <= 0
        assert row["x_CorrectionReason"].startswith("counted twice")


def test_where_there_is_no_list_price_the_price_stands_for_it(path: Path) -> None:
    euros = [row for row in rows_of(exported(path)) if row["BillingCurrency"] == "EUR"]
    assert euros
    for row in euros:
        assert (row["ListUnitPrice"], row["ListCost"]) == (
            row["ContractedUnitPrice"],
            row["ContractedCost"],
        )
        assert row["x_ListPriceVersionId"] == ""


def test_a_price_changes_and_what_it_is_called_does_not(path: Path) -> None:
    rows = [row for row in rows_of(exported(path)) if row["SkuId"] == "small/output-tokens"]
    assert {row["SkuPriceId"] for row in rows} == {"small/output-tokens/standard"}
    assert len({row["x_PriceVersionId"] for row in rows}) == 4
    assert "PricingUnit" in rows[0]
    assert not any("pico" in row["SkuPriceDetails"] for row in rows)


def test_projects_are_sub_accounts(path: Path) -> None:
    rows = rows_of(exported(path))
    found = {(row["SubAccountId"], row["SubAccountName"], row["SubAccountType"]) for row in rows}
    assert ("pr_tn_1_a", "a, Inc", "Project") in found
    assert ("", "", "") in found


def test_what_looks_like_a_formula_is_not_altered(path: Path) -> None:
    rows = rows_of(exported(path, granularity="request"))
    assert any(row["x_RequestId"].startswith(FORMULA) for row in rows)


def test_what_1_2_must_have_is_there_and_a_tool_knows_it_by_that(
    path: Path, tmp_path: Path
) -> None:
    rows = rows_of(exported(path, "1.2"))
    assert set(rows[0]) >= MANDATORY_12
    assert all(row[name] for row in rows for name in MANDATORY_12 - {"ChargeClass"})
    file = tmp_path / "focus.csv"
    file.write_bytes(exported(path, "1.2"))
    command = [sys.executable, "-m", "focus_data_toolkit", "detect", str(file)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert "1.2" in said.stdout


def test_the_columns_are_in_order_and_once(path: Path) -> None:
    for version in ("1.2", "1.4"):
        names = [column.name for column in columns(version)]
        assert len(set(names)) == len(names)
        standard = [name for name in names if not name.startswith("x_")]
        assert standard == sorted(standard)


def test_only_the_period_that_was_asked_for_is_billed(path: Path) -> None:
    form = Form("focus", "1.4")
    data = b"".join(Export(path, Selection(OCTOBER, NOVEMBER, EVER), form, NAMES))
    assert {row["BillingPeriodStart"] for row in rows_of(data)} == {"2026-10-01T00:00:00Z"}
