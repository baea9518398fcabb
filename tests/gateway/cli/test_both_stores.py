"""The commands that keep tenants, keys and books do so in either store, in the same words."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.cli.commands import main
from gateway.store.address import Database, Postgres
from gateway.stores import database_of
from runtime import settings as config
from runtime.settings import environment
from tests.postgres import PASSWORD

CONFIG = '[[models]]\nid = "m"\nengine = "fake"\nprice = { input = "1", output = "2" }\n'


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An installation in this folder, with a store of either kind."""
    monkeypatch.chdir(tmp_path)
    for name in environment():
        if name.startswith("BULKHEAD_"):
            monkeypatch.delenv(name)
    (tmp_path / "bulkhead.toml").write_text(CONFIG)
    if request.param == "postgres":
        server = request.getfixturevalue("postgres_server")
        monkeypatch.setenv("BULKHEAD_STORE_URL", server.new_database())
    yield request.param
    found: Database = database_of(config.locate())
    if isinstance(found, Postgres):
        found.close()


def run(command: str, *more: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, [*command.split(), *more])
    assert done.exit_code == code, done.output
    assert PASSWORD not in done.output
    assert "canary" not in done.output
    return done.output


def test_from_the_first_tenant_to_closed_books(store: str) -> None:
    run("tenants create acme")
    run("tenants set acme --timezone Europe/Berlin --weight 3")
    run("projects create acme rocket")
    key = json.loads(run("keys create acme --project rocket --json"))
    rotated = json.loads(run(f"keys rotate {key['id']} --json"))
    assert rotated["secret"] != key["secret"]
    (listed,) = json.loads(run("keys list acme --json"))
    assert listed["id"] == key["id"]
    budget = json.loads(run("budgets create acme --limit 12.50 --period daily --json"))
    run(f"budgets set {budget['id']}", "--limit", "20")
    assert "20" in run("budgets list acme")
    assert run(f"budgets show {budget['id']}")
    run("limits set acme --rpm 60")
    assert "60" in run("limits show acme")
    run(f"budgets archive {budget['id']}")
    assert "m" in run("prices list")
    assert "acme" in run("tenants list")
    assert run("usage export --format csv").startswith("record_id")
    assert run("ledger reconcile")
    assert run("ledger verify")
    assert run("ledger list")
    assert "has the schema of this version already" in run("migrate")
    assert "Nothing is to be done" in run("migrate --dry-run")
    run("tenants disable acme")
    run("tenants enable acme")
    run("projects archive acme rocket")
    run(f"keys revoke {key['id']}")
    assert "revoked" in run("keys list acme")


def test_what_isn_t_there_is_said_the_same_way(store: str) -> None:
    run("tenants create acme")
    for command, said in (
        ("tenants create acme", "exists already"),
        ("keys create nobody", "There is no tenant 'nobody'"),
        ("keys revoke key_0", "There is no key 'key_0'"),
    ):
        assert re.search(said, run(command, code=1))


def test_lists_are_of_one_tenant_or_of_all(store: str) -> None:
    """Who doesn't name a tenant is told of all, and whose each is."""
    for tenant in ("zeta", "acme"):
        run(f"tenants create {tenant}")
        run(f"projects create {tenant} rocket")
        run(f"keys create {tenant} --name laptop --project rocket")
        run(f"limits set {tenant} --rpm 6")
        (key,) = json.loads(run(f"keys list {tenant} --json"))
        run(f"limits set {tenant} --key {key['id']} --rpm 5")
        run(f"limits set {tenant} --project rocket --rpm 4")
        run(f"budgets create {tenant} --key {key['id']} --limit 1")
    for words in ("keys list", "projects list", "audit"):
        heading, *lines = run(words).splitlines()
        assert heading.startswith("TENANT"), words
        assert {line.split()[0] for line in lines} == {"acme", "zeta"}, words
        (heading, *_) = run(f"{words} acme").splitlines()
        assert not heading.startswith("TENANT"), words
    for words in ("keys list", "projects list"):
        told = [one["tenant"] for one in json.loads(run(f"{words} --json"))]
        assert told == ["acme", "zeta"], words
    for words in ("limits show", "budgets list"):
        assert " laptop of acme (key_" in run(words), words
        assert " laptop of zeta (key_" in run(words), words
        assert "zeta" not in run(f"{words} acme"), words
    run("keys list nobody", code=1)


def test_a_name_that_is_empty_is_nobodys_and_not_everybodys(store: str) -> None:
    """As of a script's variable that isn't set."""
    run("tenants create acme")
    lists = ("keys list", "projects list", "limits show", "budgets list", "audit")
    for command in lists:
        assert "no tenant ''" in run(command, "", code=1)
    assert "no tenant ''" in run("prices show m --tenant", "", code=1)
