"""kill -9 under load: who received the end of an answer has its row, and no row is doubled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.processes.workers import MAX_FAILURES
from tests.e2e.clients import BODY as ASKED, DONE, Load
from tests.e2e.ledger import exported, records
from tests.stack import SOAK, Stack, fake_config, running

MOST_KILLS = 12  # until one comes while streams are in progress
BODY = ASKED | {"stream": True}


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    # A model survives more kills in a row here than it would by itself.
    patient = "\n[hosts]\nmax_failures = 20\n"
    with running(tmp_path, fake_config(step_s=0.005, more=patient)) as stack:
        yield stack


def check(stack: Stack, load: Load) -> None:
    rows = exported(stack)
    ids = [row["request_id"] for row in rows]
    assert len(ids) == len(set(ids)), "no row is doubled"
    billed = {row["request_id"] for row in rows if row["billable"]}
    assert set(load.ended) <= billed, "every answer whose end was received is billed"
    assert len(load.ended) > 10, "there was load"
    assert "nothing differs" in stack.cli("ledger", "reconcile")
    assert "Traceback" not in stack.log.read_text()


def torn(load: Load) -> list[bytes]:
    """Streams that had begun, and failed."""
    return [one.data for one in load.failed if one.data.startswith(b'data: {"id"')]


def test_a_killed_host(stack: Stack) -> None:
    """Streams in progress end in an error event without [DONE]; the next requests work."""
    with Load(stack, 8, streams=[True]) as load:
        for number in range(1, MOST_KILLS + 1):
            time.sleep(1)
            stack.kill(stack.host_pid())
            load.wait_for_more(30)
            if number >= (8 if SOAK else 1) and torn(load):
                break
    check(stack, load)
    assert torn(load), "some streams were in progress"
    for data in torn(load):
        assert b'"code":"upstream_error"' in data
        assert b"[DONE]" not in data
    unbilled = [row for row in exported(stack) if row["outcome"] == "upstream_error"]
    assert unbilled
    assert not any(row["billable"] for row in unbilled)


def test_after_an_engine_s_failure_the_next_request_works(stack: Stack) -> None:
    """Also the one that comes while the failed host is still on its way out."""
    with stack.client() as client:
        for _ in range(3):
            failed = client.post("/v1/completions", json=BODY | {"prompt": "engine fails"})
            assert '"code":"upstream_error"' in failed.text
            assert "[DONE]" not in failed.text
            answers = [client.post("/v1/completions", json=BODY) for _ in range(4)]
            assert all(answer.content.endswith(DONE) for answer in answers)


def test_a_killed_gateway_worker(stack: Stack) -> None:
    """The worker comes back; what it left open is orphaned and not billed."""
    with Load(stack, 8, streams=[True]) as load:
        for _ in range(MAX_FAILURES - 1 if SOAK else 2):  # one more, and the parent gives up
            time.sleep(0.7)
            stack.kill(stack.worker_pid())
            stack.wait_ready()
        time.sleep(0.7)
    check(stack, load)
    orphans = [row for row in records(stack) if row["state"] == "orphaned"]
    assert orphans
    assert not any(row["billable"] for row in orphans)
    wait_until_none_is_open(stack)


def test_a_killed_parent(stack: Stack) -> None:
    """Everything goes with it; a new start on the same port and state works at once."""
    with Load(stack, 4, streams=[True]) as load:
        for _ in range(20 if SOAK else 3):
            load.wait_for_more(10)
            worker, host = stack.worker_pid(), stack.host_pid()
            assert stack.process is not None
            stack.kill(stack.process.pid)
            stack.process.wait()
            assert stack.process.stdout is not None
            stack.process.stdout.close()
            wait_until_gone(worker)
            wait_until_gone(host)
            key = stack.key
            stack.start()
            assert stack.key == key, "the demo key is the same on every start"
        load.wait_for_more(10)
    check(stack, load)
    wait_until_none_is_open(stack)


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"{pid} outlived its parent"
        time.sleep(0.05)


def wait_until_none_is_open(stack: Stack) -> None:
    deadline = time.monotonic() + 5
    while any(row["state"] == "open" for row in records(stack)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
