"""kill -9 in full flight: what was acknowledged is in the ledger, once; nothing stays open.

The file is also the program that gets killed: 64 workers that open and settle as fast as they can
and write down what was acknowledged, each line before the next step.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from gateway.billing import Outcome, UsageSource
from gateway.clock import SystemClock
from gateway.ledger import Ledger
from gateway.money.reconcile import differences
from gateway.prices import Terms, TokenPrices, Usage
from gateway.record import Opening, Settlement
from gateway.store.connection import open_for_reading, open_for_writing
from gateway.store.migrate import migrate
from gateway.store.reader import read
from gateway.store.writer import Writer
from tests.gateway.accounts import add_key, add_tenant

KILLS = 4
WORKERS = 64
OPENING = Opening(
    request_id="",
    tenant_id="tn_1",
    api_key_id="key_1",
    operation="chat",
    model_id="m",
    model_revision="rev",
    terms=Terms.of(TokenPrices("USD", input=10, cached_input=1, output=100)),
    streamed=False,
)
SETTLEMENT = Settlement(
    outcome=Outcome.COMPLETED,
    usage=Usage(7, 5, 3),
    usage_source=UsageSource.UPSTREAM_FINAL,
    status_code=200,
    finish_reason="stop",
    host_id=None,
    first_token_at=1,
)


async def test_what_was_acknowledged_survives_kill_9_exactly_once(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    migrate(path)
    with closing(open_for_writing(path)) as db:
        add_tenant(db)
        add_key(db)
    journal = tmp_path / "acknowledged"
    for boot in range(KILLS):
        run_and_kill(path, journal, f"boot_{boot}", settlements=300 * (boot + 1))

    writer = Writer(path)
    writer.start()
    await Ledger(writer, SystemClock(), "boot_last").reap_orphans(lambda boot: False)
    writer.close()
    check(path, [line.split() for line in journal.read_text().splitlines()])


def run_and_kill(path: Path, journal: Path, boot_id: str, settlements: int) -> None:
    with journal.open("ab") as out:
        command = [sys.executable, __file__, str(path), boot_id]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        child = subprocess.Popen(command, stdout=out, env=environment)
    wanted = count(journal) + settlements
    deadline = time.monotonic() + 20
    while count(journal) < wanted and time.monotonic() < deadline:
        assert child.poll() is None, "the child must live until it's killed"
        time.sleep(0.005)
    child.kill()
    child.wait()
    assert count(journal) >= wanted


def count(journal: Path) -> int:
    return journal.read_bytes().count(b"settled ")


def check(path: Path, journal: list[list[str]]) -> None:
    opened = [id_ for what, id_ in journal if what == "opened"]
    settled = [id_ for what, id_ in journal if what == "settled"]
    assert len(settled) == len(set(settled))
    with closing(open_for_reading(path)) as db:
        states = dict(db.execute("SELECT id, state FROM usage_record"))
        amounts = db.execute(
            "SELECT count(*), coalesce(sum(amount_pico), 0) FROM usage_record"
            " WHERE state = 'settled'"
        ).fetchone()
        lines = db.execute("SELECT count(*), sum(amount_pico) FROM usage_line").fetchone()
    assert set(opened) <= set(states)
    assert {states[id_] for id_ in settled} == {"settled"}
    assert set(states.values()) <= {"settled", "orphaned"}
    assert lines == (3 * amounts[0], amounts[1]) == (3 * amounts[0], 325 * amounts[0])
    assert read(path, lambda db: list(differences(db))) == []


async def load(path: Path, boot_id: str) -> None:
    writer = Writer(path)
    writer.start()
    ledger = Ledger(writer, SystemClock(), boot_id)
    await ledger.reap_orphans(lambda boot: False)
    await asyncio.gather(*(work(ledger, f"{boot_id}-{number}") for number in range(WORKERS)))


async def work(ledger: Ledger, name: str) -> None:
    for number in itertools.count():
        record = await ledger.open(replace(OPENING, request_id=f"{name}-{number}"))
        acknowledged(f"opened {record.id}")
        twice = (ledger.settle(record, SETTLEMENT), ledger.settle(record, SETTLEMENT))
        for is_first in await asyncio.gather(*twice):
            if is_first:
                acknowledged(f"settled {record.id}")


def acknowledged(what: str) -> None:
    os.write(1, f"{what}\n".encode())


if __name__ == "__main__":
    asyncio.run(load(Path(sys.argv[1]), sys.argv[2]))
