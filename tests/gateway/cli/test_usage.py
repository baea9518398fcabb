"""`bulkhead usage`: files, their manifests, and what is refused."""

from __future__ import annotations

import csv
import io
import json
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.commands import main
from gateway.store.connection import open_for_writing, transaction
from tests.gateway.usage.history import fill
from tests.stack import fake_config

NAMED = '\n[export]\nissuer = "Acme Cloud GmbH"\nregion = "eu"\n'


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bulkhead.toml").write_text(fake_config() + NAMED)
    for name in ("BULKHEAD_URL", "BULKHEAD_API_KEY", "BULKHEAD_STATE", "BULKHEAD_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    assert run("tenants create acme").exit_code == 0
    assert run("keys create acme").exit_code == 0  # and with it the root secret
    with closing(open_for_writing(tmp_path / ".bulkhead" / "bulkhead.db")) as db, transaction(db):
        fill(db, 100)


def run(words: str) -> Result:
    return CliRunner().invoke(main, words.split())


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def test_an_export_is_verified_by_its_manifest(tmp_path: Path) -> None:
    words = "usage export --format focus --period 2026-10 -o october.csv --manifest october.json"
    done = run(words)
    assert done.exit_code == 0, done.output
    found = rows((tmp_path / "october.csv").read_text())
    assert f"Wrote october.csv: {len(found)} rows." in done.stderr
    assert {row["InvoiceIssuerName"] for row in found} == {"Acme Cloud GmbH"}
    assert {row["RegionName"] for row in found} == {"eu"}
    told = run("usage verify october.json")
    assert told.exit_code == 0, told.output
    assert f"october.csv: {len(found)} rows, BilledCost " in told.stdout
    key = run("usage public-key").stdout.strip()
    assert run(f"usage verify october.json --public-key {key}").exit_code == 0
    (tmp_path / "october.csv").write_text("nothing")
    wrong = run("usage verify october.json")
    assert (wrong.exit_code, "october.csv has 7 bytes" in wrong.stderr) == (1, True)
    (tmp_path / "october.csv").unlink()
    assert run("usage verify october.json").exit_code == 1
    stranger = run("usage verify october.json --public-key AAAA")
    assert (stranger.exit_code, "another installation's" in stranger.stderr) == (1, True)


def test_a_manifests_bound_makes_its_file_again(tmp_path: Path) -> None:
    assert run("usage export -o all.csv --manifest all.json").exit_code == 0
    bound = json.loads((tmp_path / "all.json").read_text())["contents"]["seq_bound"]
    with closing(open_for_writing(tmp_path / ".bulkhead" / "bulkhead.db")) as db:
        assert db.execute("SELECT seq FROM ledger_counter").fetchone() == (bound,)
    again = run(f"usage export --bound {bound}")
    assert again.stdout_bytes == (tmp_path / "all.csv").read_bytes()
    assert len(rows(run("usage export --bound 5").stdout)) == 5


def test_which_months_are_final() -> None:
    found = rows(run("usage export --dataset billing-period").stdout)
    assert [row["BillingPeriodStatus"] for row in found] == ["Closed", "Open"]


def test_one_tenants_and_everyones(tmp_path: Path) -> None:
    everyone = rows(run("usage export --format focus").stdout)
    assert {row["BillingAccountName"] for row in everyone} == {"name of tn_1", "name of tn_2"}
    assert rows(run("usage export --tenant acme").stdout) == []
    assert run("usage export --tenant nobody").exit_code == 1


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ("--period october", 2, "is none of last-hour, yesterday, last-month, 2026-11"),
        ("--period 2026-10 --from 2026-10-01", 2, "--period stands in place of --from"),
        ("--from 2026-10-02 --to 2026-10-01", 2, "--from must be before --to"),
        ("--manifest x.json", 2, "--manifest needs --output"),
        ("--manifest x.json -o other/x.csv", 2, "name the same folder"),
        ("--format xlsx", 2, "xlsx"),
        ("--bound 999", 1, "no record is numbered 999 yet"),
        ("-o nowhere/x.csv", 1, "nowhere/x.csv: No such file or directory"),
    ],
)
def test_what_is_refused(words: str, code: int, reason: str) -> None:
    done = run(f"usage export {words}")
    assert (done.exit_code, reason in done.stderr) == (code, True), done.stderr


def test_without_pyarrow_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    done = run("usage export --format parquet")
    assert (done.exit_code, "pip install 'bulkhead[parquet]'" in done.stderr) == (1, True)


def test_the_last_periods_are_whole() -> None:
    for period in ("last-hour", "yesterday", "last-month", "2026-10-05"):
        done = run(f"usage export --period {period}")
        assert done.exit_code == 0, done.output
    (day,) = {row["charge_at"][:10] for row in rows(run("usage export --period 2026-10-05").stdout)}
    assert day == "2026-10-05"
