"""New certificates while requests run: none is lost, whatever is killed or stopped meanwhile."""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.processes.worker import SETTLE_S
from tests.authority import DAY, Authority, Issued, p256, pem_of
from tests.e2e.ledger import exported, records, row_of
from tests.e2e.test_tls import BODY, SERVER, connect
from tests.stack import BULKHEAD, REPO, SOAK, Stack, fake_config, free_port, running
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

DRAIN_S = 4
RELOADS = 20 if SOAK else 5
LONG = BODY | {"max_tokens": 6000, "stream": True}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    authority = Authority(tmp_path)
    authority.issue()
    return authority


@pytest.fixture
def stack(authority: Authority) -> Iterator[Stack]:
    config = fake_config(step_s=0.01, more=f"[server]\ndrain_s = {DRAIN_S}\n{SERVER}")
    with running(authority.folder, config, tls=authority.context()) as stack:
        yield stack


def serial(stack: Stack) -> int:
    """Of the certificate that a new connection is shown."""
    assert isinstance(stack.tls, ssl.SSLContext)
    with connect(stack, stack.tls) as sock:
        shown = sock.getpeercert()
        assert shown
        return int(str(shown["serialNumber"]), 16)


def renew(stack: Stack, authority: Authority) -> Issued:
    """New certificates, written one file after the other; returns once they are in use."""
    issued = authority.issue()
    wait_for(lambda: serial(stack) == issued.serial)
    return issued


def said(stack: Stack, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in stack.log.read_text().splitlines() if line[:1] == "{"]
    return [line for line in lines if line.get("event") == event]


class Stream:
    """An answer that is read as it comes, in a thread."""

    def __init__(self, stack: Stack, body: dict[str, Any] = LONG) -> None:
        self.data = b""
        self.error: Exception | None = None
        self.request_id = ""
        self._thread = threading.Thread(target=self._read, args=(stack, body))
        self._thread.start()
        wait_for(lambda: self.data or self.error)

    def _read(self, stack: Stack, body: dict[str, Any]) -> None:
        try:
            with (
                stack.client() as client,
                client.stream("POST", "/v1/completions", json=body) as answer,
            ):
                self.request_id = answer.headers["x-request-id"]
                for chunk in answer.iter_raw():
                    self.data += chunk
        except httpx.HTTPError as fault:
            self.error = fault

    def end(self) -> bytes:
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self.data


class Load:
    """Clients that ask and ask: with a new connection each time, and over one that is kept."""

    def __init__(self, stack: Stack, clients: int) -> None:
        self.answered = 0
        self.failed: list[Exception] = []
        self._stack = stack
        self._stop = threading.Event()
        loops = [self._anew, self._anew, self._kept] * clients
        self._threads = [threading.Thread(target=loop) for loop in loops[:clients]]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _anew(self) -> None:
        assert isinstance(self._stack.tls, ssl.SSLContext)
        headers = {"authorization": f"Bearer {self._stack.key}", "content-type": "application/json"}
        while not self._stop.is_set():
            connection = http.client.HTTPSConnection(
                "127.0.0.1", self._stack.port, context=self._stack.tls, timeout=60
            )
            try:
                connection.request("POST", "/v1/completions", json.dumps(BODY), headers)
                answer = connection.getresponse()
                assert (answer.status, b"abcdefgh" in answer.read()) == (200, True)
                self.answered += 1
            except (OSError, http.client.HTTPException, AssertionError) as fault:
                self.failed.append(fault)
            finally:
                connection.close()

    def _kept(self) -> None:
        with self._stack.client() as client:
            while not self._stop.is_set():
                try:
                    answer = client.post("/v1/completions", json=BODY)
                    assert (answer.status_code, "abcdefgh" in answer.text) == (200, True)
                    self.answered += 1
                except (httpx.HTTPError, AssertionError) as fault:
                    self.failed.append(fault)


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
    assert stream.end().endswith(b"data: [DONE]\n\n")
    assert time.monotonic() - began > DRAIN_S
    assert row_of(stack, stream.request_id)["output_tokens"] == tokens
    wait_for(lambda: old_worker not in stack.children("spawn_main"))
    assert serial(stack) == issued.serial
    assert [line["settles"] for line in said(stack, "gateway_retiring")] == [True]
    assert not any(row["state"] == "orphaned" for row in records(stack))


def test_reloads_under_load_lose_nothing(stack: Stack, authority: Authority) -> None:
    """New connections and kept ones, through many handovers; each answer is billed once."""
    with Load(stack, 6) as load:
        for _ in range(RELOADS):
            renew(stack, authority)
        wait_for(lambda: load.answered > 200)
    assert load.failed == []
    rows = exported(stack)
    assert len(rows) == load.answered == len({row["request_id"] for row in rows})
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


def test_the_new_worker_is_killed_as_it_comes_up(stack: Stack, authority: Authority) -> None:
    """The old one goes on as if nothing had been."""
    before, worker = serial(stack), stack.worker_pid()
    stream = Stream(stack, LONG | {"max_tokens": 800})
    authority.issue()
    wait_for(lambda: len(stack.children("spawn_main")) == 2)
    stack.kill(next(pid for pid in stack.children("spawn_main") if pid != worker))
    wait_for(lambda: said(stack, "certificate_refused"))
    assert "killed by signal 9" in said(stack, "certificate_refused")[0]["reason"]
    assert stream.end().endswith(b"data: [DONE]\n\n")
    assert serial(stack) == before
    renew(stack, authority)


def test_a_retired_worker_is_killed(stack: Stack, authority: Authority) -> None:
    """Its stream breaks, and its row is orphaned while the new worker serves on."""
    worker = stack.worker_pid()
    stream = Stream(stack)
    renew(stack, authority)
    mine = Stream(stack, LONG | {"max_tokens": 500})
    stack.kill(worker)
    stream.end()
    assert stream.error is not None
    wait_for(lambda: any(row["state"] == "orphaned" for row in records(stack)))
    assert mine.end().endswith(b"data: [DONE]\n\n")
    states = {row["request_id"]: row["state"] for row in records(stack)}
    assert states == {stream.request_id: "orphaned", mine.request_id: "settled"}


@pytest.mark.parametrize("moment", ["coming", "settling", "finishing"])
def test_a_stop_in_mid_handover_drains_all(stack: Stack, authority: Authority, moment: str) -> None:
    """A short answer ends; one that would outlast the drain is told so; nothing stays behind."""
    old = stack.worker_pid()
    outlasts = Stream(stack)
    if moment == "coming":
        authority.issue()
        wait_for(lambda: len(stack.children("spawn_main")) == 2)
    else:
        renew(stack, authority)
        if moment == "finishing":
            time.sleep(SETTLE_S + 1)
        assert old in stack.children("spawn_main")
    ends = Stream(stack, LONG | {"max_tokens": 150})
    workers = stack.children("spawn_main")
    assert stack.stop() == 0
    assert ends.end().endswith(b"data: [DONE]\n\n")
    assert b'"code":"server_stopping"' in outlasts.end()
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    rows = {row["request_id"]: row for row in records(stack)}
    assert rows[ends.request_id]["outcome"] == "length"
    assert rows[outlasts.request_id]["outcome"] == "crashed"
    assert {row["state"] for row in rows.values()} == {"settled"}
    assert "Traceback" not in stack.log.read_text()


def test_another_gateway_on_this_store_is_refused(stack: Stack) -> None:
    """The parent owns it: two workers may share it, two gateways may not."""
    told = subprocess.run(
        [*BULKHEAD, "gateway", "--config", str(stack.config), "--state", str(stack.state),
         "--port", str(free_port()), "--admin-port", "0"],
        capture_output=True, text=True, cwd=REPO, timeout=60, check=False,
    )  # fmt: skip
    assert told.returncode == 4, told.stderr
    assert "already in use by a running Bulkhead gateway" in told.stderr
