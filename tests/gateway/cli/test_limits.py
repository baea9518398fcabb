"""`bulkhead limits`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.cli.commands import main
from tests.stack import fake_config

CONFIG = """
[limits.per_tenant]
rpm = 600
[[tenants]]
name = "acme"
limits = [{ tpm = 7000 }, { model = "echo", concurrent = 3 }]
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bulkhead.toml").write_text(fake_config(more=CONFIG))
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


def test_numbers_are_set_one_by_one_shown_and_cleared() -> None:
    told("limits set acme --rpm 60")
    assert told("limits set acme --tpm 9000")["rpm"] == 60, "it stays"
    key = told("keys create acme")["id"]
    told(f"limits set acme --key {key} --model echo --concurrent 2")
    first, second = told("limits show acme")
    assert (first["kind"], first["id"], first["model"], first["concurrent"]) == (
        *("key", key),
        *("echo", 2),
    )
    assert (second["kind"], second["rpm"], second["tpm"], second["concurrent"]) == (
        *("tenant", 60),
        *(9000, None),
    )
    assert run(f"limits clear acme --key {key} --model echo").exit_code == 0
    assert run("limits clear acme").exit_code == 0
    assert told("limits show acme") == []
    assert run("limits clear acme").exit_code == 1


def test_what_the_configuration_says_is_shown_beside() -> None:
    lines = [line.split() for line in run("limits show acme").stdout.splitlines()]
    assert ["each", "tenant", "all", "600", "config"] in lines
    assert ["this", "tenant", "all", "7000", "config"] in lines
    assert ["this", "tenant", "echo", "3", "config"] in lines


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ("set nobody --rpm 1", 1, "no tenant 'nobody'"),
        ("set acme", 2, "at least one of --rpm"),
        ("set acme --rpm 0", 2, "0 is not in the range"),
        ("set acme --rpm 1 --key key_x", 1, "no key 'key_x'"),
        ("set acme --rpm 1 --project x", 1, "no project 'x'"),
        ("set acme --rpm 1 --project x --key y", 2, "one of them"),
        ("set acme --rpm 1 --model x", 2, "no model 'x'"),
    ],
)
def test_what_is_no_limit_is_refused(words: str, code: int, reason: str) -> None:
    done = run(f"limits {words}")
    assert reason in done.output + str(done.exception), done.output
    assert done.exit_code == code


def test_a_list_tells_names() -> None:
    """Of whom a limit and a budget is; a key's id beside its name, which others may have too."""
    assert run("projects create acme web").exit_code == 0
    key = json.loads(run("keys create acme --name robot --json").stdout)["id"]
    for whose in ("", " --project web", f" --key {key}"):
        assert run(f"limits set acme --rpm 7{whose}").exit_code == 0
        assert run(f"budgets create acme --limit 3{whose}").exit_code == 0
    for listed in (run("limits show acme").stdout, run("budgets list acme").stdout):
        assert "tenant acme " in listed
        assert "project web " in listed
        assert f"key robot of acme ({key})" in listed
    assert f"of key robot of acme ({key})" in run(f"limits clear acme --key {key}").stdout
