"""`bulkhead ledger` and `bulkhead prices`, on a state folder with a store in it."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.cli.commands import main
from gateway.clock import SYSTEM_CLOCK
from gateway.ledger import Ledger
from gateway.money.price_store import sync
from gateway.money.wanted import wanted_of
from gateway.store.connection import DATABASE, open_for_writing, transaction
from gateway.store.migrate import migrate
from gateway.store.writer import Writer
from runtime import keyring
from runtime.settings import parse
from tests.gateway.money.books import enter, rows, tamper
from tests.gateway.records import FakeClock, fill

CONFIG = """
[[models]]
id = "m"
engine = "fake"
price = { input = "1", output = "2" }
[[tenants]]
name = "acme"
prices = [{ model = "m", currency = "EUR", input = "7", cached_input = "0", output = "0" }]
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "bulkhead.toml").write_text(CONFIG)
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    keyring.load(folder)
    migrate(folder / DATABASE)
    fill(folder / DATABASE)
    return folder


@pytest.fixture
async def record_id(state: Path) -> str:
    """A closed record, of 1970."""
    writer = Writer(state / DATABASE)
    writer.start()
    try:
        return await enter(Ledger(writer, FakeClock(), "boot_1"))
    finally:
        writer.close()


def run(state: Path, *words: str) -> Result:
    places = ["--config", str(state.parent / "bulkhead.toml"), "--state", str(state)]
    return CliRunner().invoke(main, [*words, *places])


def said(state: Path, *words: str, code: int = 0) -> Any:
    """A JSON answer."""
    result = run(state, *words, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.output)


async def test_a_record_is_corrected_once_for_each_reason(state: Path, record_id: str) -> None:
    told = run(state, "ledger", "correct", record_id, "--reason", "a test", "--output", "1")
    assert told.output.startswith(f"Corrected {record_id} by -0.0000000002 USD (ur_")
    again = said(state, "ledger", "correct", record_id, "--reason", "a test", "--void")
    assert (again["corrects"], again["amount"]) == (record_id, "-0.000000000125")
    nothing = run(state, "ledger", "correct", record_id, "--reason", "a test", "--void")
    assert (nothing.exit_code, "nothing is to be corrected" in nothing.output) == (1, True)
    for wrong in ([], ["--void", "--output", "1"]):
        assert run(state, "ledger", "correct", record_id, "--reason", "x", *wrong).exit_code == 2


async def test_months_are_listed_and_closed(state: Path, record_id: str) -> None:
    assert run(state, "ledger", "close", "1970-13").exit_code == 2
    assert said(state, "ledger", "close", "1970-01")["seq_bound"] == 1
    months = said(state, "ledger", "list")
    assert (months[0]["month"], months[0]["status"]) == ("1970-01", "closed")
    assert months[-1]["status"] == "open"
    present = run(state, "ledger", "close", months[-1]["month"])
    assert (present.exit_code, "48 hours after its end" in present.output) == (1, True)
    late = said(state, "ledger", "correct", record_id, "--reason", "r", "--void")
    assert late["is_late"]


async def test_what_differs_is_named_and_sums_are_repaired(state: Path, record_id: str) -> None:
    good = run(state, "ledger", "reconcile")
    assert (good.exit_code, "1 closed record, 0 open" in good.output) == (0, True)
    assert "The engines weren't asked" in good.output
    tamper(state / DATABASE, "UPDATE usage_rollup SET amount_pico = 1")
    (one,) = said(state, "ledger", "reconcile", code=1)["differences"]
    assert one["what"] == "rollup"
    assert said(state, "ledger", "reconcile", "--repair")["repaired"] == 1
    tamper(state / DATABASE, "UPDATE usage_record SET amount_pico = 1")
    found = said(state, "ledger", "reconcile", "--repair", code=1)["differences"]
    assert [one["what"] for one in found] == ["record_amount"], "no record is repaired"


async def test_a_kept_checkpoint_shows_what_was_done(state: Path, record_id: str) -> None:
    kept = state.parent / "checkpoint.json"
    assert run(state, "ledger", "checkpoint", "-o", str(kept)).exit_code == 0
    good = run(state, "ledger", "verify", "--checkpoint", str(kept))
    assert (good.exit_code, "Sealed records: 1," in good.output) == (0, True)
    assert len(run(state, "ledger", "key").output.strip()) == 64
    tamper(state / DATABASE, "UPDATE usage_record SET output_tokens = 2")
    found = said(state, "ledger", "verify", code=1)["findings"]
    assert [(one["kind"], one["record_id"]) for one in found] == [("changed", record_id)]
    kept.write_text("{}")
    unread = run(state, "ledger", "verify", "--checkpoint", str(kept))
    assert (unread.exit_code, "no checkpoint" in unread.output) == (1, True)


def test_a_price_of_the_past_is_not_deployed(state: Path) -> None:
    changed = CONFIG.replace('output = "2" }', 'output = "3", effective_from = 2026-01-01 }')
    with closing(open_for_writing(state / DATABASE)) as db, transaction(db):
        sync(db, wanted_of(parse(CONFIG, "x")[0]), SYSTEM_CLOCK.now_us())
    (state.parent / "bulkhead.toml").write_text(changed)
    for options in ([], ["--dry-run"]):
        refused = run(state, "deploy", *options)
        assert (refused.exit_code, "effective_from" in refused.output) == (3, True)
    assert not (state / "deployments").exists()


def test_prices_in_force_and_their_history(state: Path) -> None:
    assert "No prices yet" in run(state, "prices", "list").output
    now = SYSTEM_CLOCK.now_us()
    for config in (CONFIG, CONFIG.replace('input = "1"', 'input = "3"')):
        with closing(open_for_writing(state / DATABASE)) as db, transaction(db):
            sync(db, wanted_of(parse(config, "x")[0]), now)
        now += 1
    found = said(state, "prices", "list")
    assert [(one["for"], one["tenant"], one["input"], one["currency"]) for one in found] == [
        ("everybody", None, "3", "USD"),
        ("tenant", "acme", "7", "EUR"),
    ]
    shown = said(state, "prices", "show", "m")
    assert [(one["input"], one["reason"]) for one in shown] == [("3", "changed"), ("1", "first")]
    assert len(said(state, "prices", "show", "m", "--tenant", "acme")) == 3
    assert run(state, "prices", "show", "other").exit_code == 1
    assert len(rows(state / DATABASE, "SELECT 1 FROM price_version")) == 3
