"""New certificates while requests run: none is lost, and bad ones change nothing."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.processes.worker import SETTLE_S
from tests.authority import DAY, Authority, p256, pem_of
from tests.e2e.clients import DONE, LONG, Load, Stream
from tests.e2e.handover import DRAIN_S, renew, said, serial, with_certificates
from tests.e2e.ledger import exported, records, row_of
from tests.stack import BULKHEAD, REPO, SOAK, Stack, free_port
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

RELOADS = 20 if SOAK else 5


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


def test_a_stream_outlives_the_handover_and_is_not_cut_at_the_drain(
    stack: Stack, authority: Authority
) -> None:
    """It ends on the old worker, long after new connections have seen the new certificate."""
    old_worker = stack.worker_pid()
    tokens = int((SETTLE_S + 3 * DRAIN_S) / 0.01)
    stream = Stream(stack, LONG | {"max_tokens": tokens})
    issued = renew(stack, authority)
    began = time.monotonic()
    wait_for(lambda: old_worker in stack.children("spawn_main") and said(stack, "gateway_retiring"))
    assert stream.end().endswith(DONE)
    assert time.monotonic() - began > DRAIN_S
    assert row_of(stack, stream.request_id)["output_tokens"] == tokens
    wait_for(lambda: old_worker not in stack.children("spawn_main"))
    assert serial(stack) == issued.serial
    assert [line["settles"] for line in said(stack, "gateway_retiring")] == [True]
    assert not any(row["state"] == "orphaned" for row in records(stack))


def test_reloads_under_load_lose_nothing(stack: Stack, authority: Authority) -> None:
    """New connections and kept ones, through many handovers; each answer is billed once."""
    with Load(stack, 6, streams=[False], anew=[True, True, False]) as load:
        for _ in range(RELOADS):
            renew(stack, authority)
        wait_for(lambda: len(load.ended) > 200)
    assert load.failed == []
    rows = exported(stack)
    assert len(rows) == len(load.ended) == len({row["request_id"] for row in rows})
    assert {row["outcome"] for row in rows} == {"length"}
    assert len(said(stack, "certificate_in_use")) == RELOADS + 1


@pytest.mark.parametrize("fault", ["expired", "mismatch", "half", "gone"])
def test_a_bad_certificate_is_refused_and_the_old_one_stays(
    stack: Stack, authority: Authority, fault: str
) -> None:
    """With its reason in the log, until a good one comes."""
    before, worker = serial(stack), stack.worker_pid()
    issued = authority.issue(until=-DAY / 2 if fault == "expired" else 90 * DAY)
    if fault == "mismatch":
        issued.key_path.write_bytes(pem_of(p256()))
    elif fault == "half":
        issued.cert_path.write_bytes(issued.cert_path.read_bytes()[:300])
    elif fault == "gone":
        issued.key_path.unlink()
    wait_for(lambda: said(stack, "certificate_refused"))
    assert str(authority.folder) in said(stack, "certificate_refused")[0]["reason"]
    assert serial(stack) == before
    stack.kill(worker)
    assert serial(stack) == before, "a worker that crashes comes back with what was checked"
    assert stack.worker_pid() != worker
    renew(stack, authority)


def test_another_gateway_on_this_store_is_refused(stack: Stack) -> None:
    """The parent owns it: two workers may share it, two gateways may not."""
    told = subprocess.run(
        [*BULKHEAD, "gateway", "--config", str(stack.config), "--state", str(stack.state),
         "--port", str(free_port()), "--admin-port", "0"],
        capture_output=True, text=True, cwd=REPO, timeout=60, check=False,
    )  # fmt: skip
    assert told.returncode == 4, told.stderr
    assert "already in use by a running Bulkhead gateway" in told.stderr
