"""Jobs by the clock, in a gateway that runs: due ones are done, and others at a word."""

from __future__ import annotations

import csv
import datetime
import json
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stack import SOAK, Stack, fake_config, running

CRONS = """
[[triggers.crons]]
cron = "* * * * *"
run = "backup"
to = "kept"
keep = 2

[[triggers.crons]]
cron = "* * * * *"
run = "usage-export"
to = "out"

[[triggers.crons]]
cron = "0 0 1 1 *"
run = "warm"
model = "echo"
"""
BODY = {"model": "echo", "prompt": "abcdefgh", "max_tokens": 4}


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """A gateway that was away for two minutes."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=2)
    (state / "crons.lock").write_text(then.isoformat())
    with running(tmp_path, fake_config(more=CRONS)) as stack:
        yield stack


def triggers(stack: Stack) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(stack.cli("triggers", "list", "--json"))
    return found


def last_of(stack: Stack, number: int, after: str = "") -> dict[str, Any]:
    """The last run of a job, once there is one of a later boundary."""
    deadline = time.monotonic() + 150
    while (last := triggers(stack)[number - 1]["last"]) is None or last["at"] <= after:
        assert time.monotonic() < deadline, stack.log.read_text()[-2000:]
        time.sleep(0.5)
    return dict(last)


def test_what_a_restart_missed_is_made_up_and_what_is_asked_for_is_done(
    stack: Stack, tmp_path: Path
) -> None:
    backup, export = last_of(stack, 1), last_of(stack, 2)
    assert backup["ok"]
    assert export["ok"]
    file = Path(backup["said"].removeprefix("wrote "))  # the next minute's may lie beside it
    assert file.parent == tmp_path / "kept"
    with tarfile.open(file) as tar:
        assert tar.getnames()[0] == "manifest.json"
    with stack.client() as client:
        request_id = client.post("/v1/completions", json=BODY).headers["x-request-id"]
    done = json.loads(stack.cli("triggers", "run", "1", "--json"))
    assert done["said"].startswith("wrote ")
    assert "has a host" in stack.cli("triggers", "run", "3")
    assert "the config has 3 jobs" in stack.cli("triggers", "run", "4", ok=False)
    if SOAK:
        for _ in range(3):
            export = last_of(stack, 2, after=export["at"])
        files = sorted((tmp_path / "out").glob("usage-demo-*.csv"))
        lines = [csv.DictReader(path.read_text().splitlines()) for path in files]
        rows = [row["request_id"] for reader in lines for row in reader]
        assert rows.count(request_id) == 1
        names = [path.stem.split("-")[2:] for path in files]
        assert [end for _, end in names[:-1]] == [start for start, _ in names[1:]]
        assert len(list((tmp_path / "kept").glob("*.tar.gz"))) == 2


def test_a_job_that_cannot_be_done_is_told(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file, where a folder should be")
    config = tmp_path / "bulkhead.toml"
    config.write_text(fake_config(more=CRONS))
    stack = Stack(config, tmp_path / "state", 0)
    assert "holds no database" in stack.cli("triggers", "run", "1", ok=False)
    stack.cli("tenants", "create", "acme")
    assert "FileExistsError" in stack.cli("triggers", "run", "1", ok=False)
    assert "no node answers" in stack.cli("triggers", "run", "3", ok=False)
    assert [job["last"] and job["last"]["ok"] for job in triggers(stack)] == [False, None, False]
