"""A bill, wherever it is told: over HTTP, by the command, and as usage, corrections included."""

from __future__ import annotations

import csv
import datetime
import hashlib
import io
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from gateway.usage.export import FORMATS
from tests.e2e.ledger import exported
from tests.stack import Stack, fake_config, running

PERIOD = {"start_time": "2026-01-01T00:00:00Z", "end_time": "2099-01-01T00:00:00Z"}
FROM_TO = ("--from", PERIOD["start_time"], "--to", PERIOD["end_time"])


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One of its own: others count the records of a shared one."""
    with running(tmp_path_factory.mktemp("bills"), fake_config()) as found:
        yield found


def use(stack: Stack, times: int) -> None:
    """Requests, one of which is corrected to nothing."""
    with stack.client() as client:
        for _ in range(times):
            body = {"model": "echo", "prompt": "canary-prompt", "max_tokens": 3}
            assert client.post("/v1/completions", json=body).status_code == 200
    record = exported(stack, **PERIOD)[-1]["record_id"]
    stack.cli("ledger", "correct", record, "--void", "--reason", "counted twice")


def billed(text: str) -> dict[str, Decimal]:
    found: dict[str, Decimal] = {}
    for row in csv.DictReader(io.StringIO(text, newline=""), strict=True):
        currency = row["BillingCurrency"]
        found[currency] = found.get(currency, Decimal()) + Decimal(row["BilledCost"])
    return found


def test_a_bill_is_the_same_wherever_it_is_told(stack: Stack, tmp_path: Path) -> None:
    use(stack, 5)
    with stack.client() as client:
        bound = client.get("/v1/usage/export", params=PERIOD).headers["x-bulkhead-seq-bound"]
        for fmt in FORMATS:
            query = PERIOD | {"format": fmt, "bound": bound}
            over_http = client.get("/v1/usage/export", params=query)
            assert over_http.status_code == 200, over_http.text
            for secret in ("canary-prompt", stack.key):
                assert secret.encode() not in over_http.content
            told = client.get("/v1/usage/export/manifest", params=query).json()
            (entry,) = told["contents"]["files"]
            assert entry["sha256"] == hashlib.sha256(over_http.content).hexdigest()
            out, manifest = tmp_path / f"bill.{fmt}", tmp_path / f"bill.{fmt}.json"
            words = ("usage", "export", "--tenant", "demo", "--format", fmt, "--bound", bound)
            stack.cli(*words, *FROM_TO, "-o", str(out), "--manifest", str(manifest))
            assert out.read_bytes() == over_http.content
            assert json.loads(manifest.read_text())["public_key"] == told["public_key"]
            assert f"{out.name}: " in stack.cli("usage", "verify", str(manifest))


def test_usage_and_charges_add_up_to_the_same(stack: Stack) -> None:
    use(stack, 3)
    now = datetime.datetime.now(datetime.UTC)
    period = PERIOD | {"start_time": f"{now - datetime.timedelta(days=2):%Y-%m-%dT00:00:00Z}"}
    with stack.client() as client:
        page = client.get("/v1/usage", params=period).json()
        charges = client.get("/v1/usage/export", params=period | {"format": "focus"}).text
    used: dict[str, Decimal] = {}
    for result in (result for bucket in page["data"] for result in bucket["results"]):
        amount = result["amount"]
        used[amount["currency"]] = used.get(amount["currency"], Decimal()) + Decimal(
            amount["value"]
        )
    assert used == billed(charges)
    assert "counted twice" in charges
