"""`bulkhead budgets`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.cli.commands import main
from tests.stack import fake_config


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bulkhead.toml").write_text(fake_config())
    for name in ("BULKHEAD_URL", "BULKHEAD_API_KEY", "BULKHEAD_STATE", "BULKHEAD_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    assert run("tenants create acme").exit_code == 0


def run(words: str) -> Result:
    return CliRunner().invoke(main, words.split())


def told(words: str) -> Any:
    done = run(f"{words} --json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_budget_is_made_listed_shown_and_archived() -> None:
    made = told("budgets create acme --limit 12.50 --period daily --currency EUR --model echo")
    assert (made["limit"], made["currency"], made["model"]) == ("12.5", "EUR", "echo")
    assert made["scope"]["kind"] == "tenant"
    assert made["window"]["ends_at"] - made["window"]["starts_at"] == 86_400
    assert [one["id"] for one in told("budgets list acme")] == [made["id"]]
    assert told(f"budgets show {made['id']}")["raised"] == []
    assert "12.5 EUR daily" in run(f"budgets show {made['id']}").stdout
    assert run(f"budgets archive {made['id']}").exit_code == 0
    assert told("budgets list") == []
    assert told("budgets list --all")[0]["archived_at"] is not None


def test_a_limit_is_changed() -> None:
    made = told("budgets create acme --limit 12.50")
    assert "20 USD monthly" in run(f"budgets set {made['id']} --limit 20").stdout
    assert told(f"budgets show {made['id']}")["limit"] == "20"


def test_a_budget_of_a_project() -> None:
    assert run("projects create acme web").exit_code == 0
    by_name = told("budgets create acme --limit 1 --project web")
    by_id = told(f"budgets create acme --limit 1 --project {by_name['scope']['id']}")
    assert by_name["scope"] == by_id["scope"]
    assert by_name["scope"]["kind"] == "project"
    assert "project web of acme" in run("budgets list").stdout


def test_a_budget_of_a_key() -> None:
    key = told("keys create acme")
    made = told(f"budgets create acme --limit 1 --key {key['id']} --alerts 90,10")
    assert made["scope"] == {"kind": "key", "id": key["id"]}
    assert made["alerts"] == [10, 90]
    assert key["id"] in run("budgets list").stdout


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ("create nobody --limit 1", 1, "no tenant 'nobody'"),
        ("create acme --limit 0", 1, "more than 0"),
        ("create acme --limit 1e3", 2, "is not an amount"),
        ("create acme --limit 0.0000000001", 2, "at most 9 decimals"),
        ("create acme --limit 1 --currency euro", 1, "ISO 4217"),
        ("create acme --limit 1 --key key_x", 1, "has no key"),
        ("create acme --limit 1 --project web", 1, "no project 'web'"),
        ("create acme --limit 1 --project web --key k", 2, "one of them"),
        ("create acme --limit 1 --model ecko", 2, "there are echo"),
        ("create acme --limit 1 --alerts 101", 1, "from 1 to 100"),
        ("create acme --limit 1 --alerts half", 2, "list of percentages"),
        ("show bg_x", 1, "no budget"),
        ("archive bg_x", 1, "no budget"),
        ("set bg_x --limit 1", 1, "no budget"),
        ("set bg_x --limit 0", 1, "more than 0"),
    ],
)
def test_what_is_wrong_is_told(words: str, code: int, reason: str) -> None:
    done = run(f"budgets {words}")
    assert done.exit_code == code
    assert reason in " ".join(done.stderr.split())
    assert told("budgets list --all") == []
