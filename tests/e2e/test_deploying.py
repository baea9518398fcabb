"""`deploy`, `rollback` and `dev` as an operator meets them: what they tell and change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.clients import Load
from tests.e2e.reloads import CLIENTS, Wanted, current, deploy, run, serving, until
from tests.stack import Stack, running

pytestmark = pytest.mark.slow


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with serving(tmp_path) as stack:
        yield stack


def test_rollback_goes_back_a_step_at_a_time(stack: Stack) -> None:
    """Under load, and without looking at the file, which is bad."""
    prices = ["0.30", "0.31", "0.32"]
    for price in prices[1:]:
        deploy(stack, Wanted(output_price=price).text())
    stack.config.write_text("[[models")
    with Load(stack, CLIENTS) as load, stack.client() as client:
        for args, price in (([], "0.31"), ([], "0.30"), (["3", "-m", "forth"], "0.32")):
            done = run(stack, "rollback", *args)
            assert done.returncode == 0, done.stderr
            assert "running on gateway and node" in done.stdout
            assert f"{stack.config} says something else by now" in done.stdout
            Wanted(output_price=price).is_seen(stack, client)
    assert load.failed == []
    listed = json.loads(run(stack, "deployments", "list", "--json").stdout)
    assert [(row["number"], row["restores"]) for row in listed[:3]] == [(6, 3), (5, 1), (4, 2)]
    assert listed[0]["message"] == "forth"
    assert listed[0]["current"]
    viewed = run(stack, "deployments", "view", "6")
    assert viewed.stdout == Wanted(output_price="0.32").text()
    assert "message: forth" in viewed.stderr
    lost = run(stack, "rollback", "99")
    assert (lost.returncode, "there is no deployment 99" in lost.stderr) == (1, True)


def test_a_dry_run_tells_what_would_change_and_changes_nothing(stack: Stack) -> None:
    stack.config.write_text(Wanted(output_price="0.5", extra="extra").text())
    done = run(stack, "deploy", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert '~ models.echo.price.output: "0.30" → "0.5"' in done.stdout
    assert "+ models.extra" in done.stdout
    assert "nothing was changed" in done.stdout
    assert current(stack) == 1
    with stack.client() as client:
        Wanted().is_seen(stack, client)


def test_a_secret_that_only_the_deployer_has_is_noticed(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check was good where it ran; the processes say no, and the one before is back."""
    monkeypatch.setenv("ONLY_HERE", "sk-1")
    stack.config.write_text(Wanted(output_price="0.5").text(
        '[[models]]\nid = "m"\nengine = "openai"\ncache = "salted"\nurl = "http://a.test/v1"\n'
        'api_key_secret = "ONLY_HERE"\n'
    ))  # fmt: skip
    done = run(stack, "deploy")
    assert done.returncode == 1
    assert "deployment 2 was not applied" in done.stderr
    assert "doesn't have ONLY_HERE" in done.stderr
    assert "bulkhead secret put ONLY_HERE" in done.stderr
    assert "deployment 1 is back, as 3" in done.stderr
    with stack.client() as client:
        Wanted().is_seen(stack, client)


def test_dev_deploys_its_file_when_it_is_saved(tmp_path: Path) -> None:
    with running(tmp_path, Wanted().text()) as stack, stack.client() as client:
        Wanted().is_seen(stack, client)
        draft = stack.config.with_suffix(".new")
        draft.write_text(Wanted(extra="extra").text())
        draft.replace(stack.config)
        until(lambda: "+ models.extra" in stack.log.read_text(), "it is told")
        Wanted(extra="extra").is_seen(stack, client)
        stack.config.write_text(Wanted().text("[relay]\nidle_s = 0\n"))
        until(lambda: "relay.idle_s" in stack.log.read_text(), "so are faults")
        Wanted(extra="extra").is_seen(stack, client)
        stack.config.write_text(Wanted().text("[server]\nport = 9\n"))
        until(lambda: "server.port" in stack.log.read_text(), "and what needs a restart")
        stack.config.write_text(Wanted(output_price="0.6").text())
        until(lambda: "- models.extra" in stack.log.read_text(), "a good one again")
        Wanted(output_price="0.6").is_seen(stack, client)
