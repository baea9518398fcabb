"""`bulkhead audit`: who changed what, told on the machine."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli.commands import main
from tests.stack import fake_config


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bulkhead.toml").write_text(fake_config())
    for name in ("BULKHEAD_URL", "BULKHEAD_API_KEY", "BULKHEAD_STATE", "BULKHEAD_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def run(words: str) -> str:
    done = CliRunner().invoke(main, words.split())
    assert done.exit_code == 0, done.output
    return done.stdout


def test_commands_are_written_down_with_who_gave_them() -> None:
    run("tenants create acme")
    run("tenants create other")
    secret = run("keys create acme --name ci").strip()
    key = json.loads(run("keys list acme --json"))[0]["id"]
    run(f"keys revoke {key}")
    run(f"keys revoke {key}")  # which changes nothing
    run("budgets create acme --limit 5")
    entries = json.loads(run("audit acme --json"))
    assert [entry["action"] for entry in entries] == [
        *("budget.created", "key.revoked", "key.created", "tenant.created")
    ]
    me = pwd.getpwuid(os.getuid()).pw_name
    assert {(entry["actor_kind"], entry["actor_id"]) for entry in entries} == {("cli", me)}
    assert 'scope=["tenant", "tn_' in run("audit acme")
    everything = run("audit")
    assert "tenant.created" in everything
    assert secret not in everything + json.dumps(entries)
    assert len(json.loads(run("audit --limit 2 --json"))) == 2


def test_a_tenants_log_has_the_limits_of_its_projects_and_keys() -> None:
    run("tenants create acme")
    run("tenants create other")
    run("projects create acme web")
    run("keys create acme --expires 2099-01-31")
    key = json.loads(run("keys list acme --json"))[0]["id"]
    run("limits set acme --rpm 600")
    run("limits set acme --project web --rpm 60")
    run(f"limits set acme --key {key} --rpm 6")
    run(f"limits clear acme --key {key}")
    actions = [entry["action"] for entry in json.loads(run("audit acme --json"))]
    assert actions[:4] == ["limits.cleared", *["limits.set"] * 3]
    assert "limits" not in run("audit other")
    assert "expires_at=2099-01-31T00:00:00" in run("audit acme")
