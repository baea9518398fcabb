"""Lists with nothing in them say so, and what would put something there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.commands import main
from gateway.cli.periods import TAKES
from tests.stack import fake_config


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bulkhead.toml").write_text(fake_config())
    for name in ("BULKHEAD_URL", "BULKHEAD_API_KEY", "BULKHEAD_STATE", "BULKHEAD_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    assert run("migrate").exit_code == 0
    return tmp_path


def run(words: str) -> Result:
    return CliRunner().invoke(main, words.split())


@pytest.mark.parametrize(
    ("words", "todo"),
    [
        ("tenants list", "bulkhead tenants create NAME"),
        ("keys list acme", "bulkhead keys create acme"),
        ("keys list", "bulkhead keys create TENANT"),
        ("projects list", "bulkhead projects create TENANT NAME"),
        ("limits show", "bulkhead limits set TENANT --rpm 600"),
        ("budgets list", "bulkhead budgets create TENANT"),
        ("secret list", "bulkhead secret put NAME"),
        ("deployments list", "bulkhead deploy"),
        ("triggers list", "[[triggers.crons]]"),
        ("models list --search nothing", "No model fits."),
    ],
)
def test_people_are_told_what_to_do_and_scripts_get_an_empty_list(
    words: str, todo: str, here: Path
) -> None:
    if "acme" in words:
        run("tenants create acme")
    done = run(words)
    assert done.exit_code == 0, done.output
    assert todo in done.stdout
    assert done.stdout.count("\n") == 1, "no bare heading"
    assert json.loads(run(f"{words} --json").stdout) == []


def test_the_help_of_a_period_says_what_it_takes() -> None:
    told = " ".join(run("usage export --help").stdout.split())
    assert told.count(TAKES) == 2
    wrong = run("usage export --from yesterday")
    assert wrong.exit_code == 2
    assert TAKES in " ".join(wrong.stderr.split())
