"""Workers killed, and gateways stopped, in the middle of a handover to new certificates."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.processes.worker import SETTLE_S
from gateway.processes.workers import MAX_TRIES
from tests.authority import Authority
from tests.e2e.clients import DONE, LONG, Stream
from tests.e2e.handover import (
    coming,
    renew,
    said,
    serial,
    shows,
    taken_over,
    with_certificates,
)
from tests.e2e.ledger import records, row_of
from tests.stack import Stack
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def renewed(tmp_path: Path) -> Iterator[tuple[Stack, Authority]]:
    with with_certificates(tmp_path) as found:
        yield found


@pytest.fixture
def stack(renewed: tuple[Stack, Authority]) -> Stack:
    return renewed[0]


@pytest.fixture
def authority(renewed: tuple[Stack, Authority]) -> Authority:
    return renewed[1]


@pytest.mark.parametrize("moment", ["comes up", "shows it", "has taken over"])
def test_the_new_worker_is_killed(stack: Stack, authority: Authority, moment: str) -> None:
    """Another comes with the new certificate, and the old one's stream never notices."""
    worker = stack.worker_pid()
    stream = Stream(stack, LONG | {"max_tokens": 1500})
    issued = authority.issue()
    new = coming(stack, worker)
    if moment != "comes up":
        shows(stack, issued)
    if moment == "has taken over":
        taken_over(stack, issued)
    stack.kill(new)
    # the old one may still accept for a moment: it is told to retire once the new one serves
    taken_over(stack, issued)
    wait_for(lambda: not Path(f"/proc/{new}").exists())
    shows(stack, issued)
    assert stream.end().endswith(DONE)
    assert row_of(stack, stream.request_id)["outcome"] == "length"
    assert said(stack, "certificate_refused") == []
    assert "Traceback" not in stack.log.read_text()


def test_each_new_worker_is_killed(stack: Stack, authority: Authority) -> None:
    """After so many the old certificate stays, until another comes."""
    before, worker = serial(stack), stack.worker_pid()
    authority.issue()
    killed: set[int] = set()
    while not said(stack, "certificate_refused"):
        for pid in set(stack.children("spawn_main")) - {worker} - killed:
            stack.kill(pid)
            killed.add(pid)
    assert len(killed) == MAX_TRIES
    assert "killed by signal 9" in said(stack, "certificate_refused")[0]["reason"]
    assert (serial(stack), stack.worker_pid()) == (before, worker)
    renew(stack, authority)


def test_the_old_worker_is_killed_while_the_new_one_comes_up(
    stack: Stack, authority: Authority
) -> None:
    worker = stack.worker_pid()
    issued = authority.issue()
    coming(stack, worker)
    stack.kill(worker)
    taken_over(stack, issued)
    wait_for(lambda: len(stack.children("spawn_main")) == 1)
    assert serial(stack) == issued.serial
    assert "Traceback" not in stack.log.read_text()


@pytest.mark.parametrize("moment", ["comes up", "has taken over"])
def test_both_workers_are_killed(stack: Stack, authority: Authority, moment: str) -> None:
    worker = stack.worker_pid()
    issued = authority.issue()
    new = coming(stack, worker)
    if moment == "has taken over":
        taken_over(stack, issued)
    stack.kill(worker)
    stack.kill(new)
    taken_over(stack, issued)
    wait_for(lambda: not {worker, new} & set(stack.children("spawn_main")))
    shows(stack, issued)
    assert Stream(stack, LONG | {"max_tokens": 10}).end().endswith(DONE)
    assert "Traceback" not in stack.log.read_text()


def test_a_second_renewal_after_the_first_one_s_worker_was_killed(
    stack: Stack, authority: Authority
) -> None:
    worker = stack.worker_pid()
    authority.issue()
    stack.kill(coming(stack, worker))
    issued = renew(stack, authority)
    taken_over(stack, issued)
    assert serial(stack) == issued.serial
    wait_for(lambda: len(stack.children("spawn_main")) == 1)
    stack.kill(stack.worker_pid())
    assert serial(stack) == issued.serial, "its files are there to come back with"


def test_a_second_renewal_before_the_first_one_s_worker_has_come_up(
    stack: Stack, authority: Authority
) -> None:
    """That one ends without a word once it can: it never serves, and its files are gone."""
    worker = stack.worker_pid()
    authority.issue()
    first = coming(stack, worker)
    os.kill(first, signal.SIGSTOP)
    issued = renew(stack, authority)
    taken_over(stack, issued)
    os.kill(first, signal.SIGCONT)
    wait_for(lambda: first not in stack.children("spawn_main"))
    assert serial(stack) == issued.serial
    wait_for(lambda: len(stack.children("spawn_main")) == 1)
    assert "Traceback" not in stack.log.read_text()


def test_a_retired_worker_is_killed(stack: Stack, authority: Authority) -> None:
    """Its stream breaks, and its row is orphaned while the new worker serves on."""
    worker = stack.worker_pid()
    stream = Stream(stack)
    taken_over(stack, renew(stack, authority))
    mine = Stream(stack, LONG | {"max_tokens": 500})
    stack.kill(worker)
    stream.end()
    assert stream.error is not None
    wait_for(lambda: any(row["state"] == "orphaned" for row in records(stack)))
    assert mine.end().endswith(DONE)
    states = {row["request_id"]: row["state"] for row in records(stack)}
    assert states == {stream.request_id: "orphaned", mine.request_id: "settled"}


@pytest.mark.parametrize("moment", ["coming", "settling", "finishing"])
def test_a_stop_in_mid_handover_drains_all(stack: Stack, authority: Authority, moment: str) -> None:
    """A short answer ends; one that would outlast the drain is told so; nothing stays behind."""
    old = stack.worker_pid()
    outlasts = Stream(stack)
    if moment == "coming":
        authority.issue()
        coming(stack, old)
    else:
        taken_over(stack, renew(stack, authority))
        if moment == "finishing":
            time.sleep(SETTLE_S + 1)
        assert old in stack.children("spawn_main")
    ends = Stream(stack, LONG | {"max_tokens": 150})
    workers = stack.children("spawn_main")
    assert stack.stop() == 0
    assert ends.end().endswith(DONE)
    assert b'"code":"server_stopping"' in outlasts.end()
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    rows = {row["request_id"]: row for row in records(stack)}
    assert rows[ends.request_id]["outcome"] == "length"
    assert rows[outlasts.request_id]["outcome"] == "crashed"
    assert {row["state"] for row in rows.values()} == {"settled"}
    assert "Traceback" not in stack.log.read_text()
