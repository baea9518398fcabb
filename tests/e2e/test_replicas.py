"""Several gateways on one PostgreSQL database: they know the same keys, and keep the same books."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gateway.leases import LEASE_S
from tests.e2e.asking import complete, eventually
from tests.e2e.clients import DONE, LONG, Load, Stream
from tests.e2e.replicas import (
    ROOT,
    check_books,
    end_sessions,
    records,
    replicas,
    rows_of,
    wait_until_none_is_open,
)
from tests.postgres import Server, server
from tests.stack import BULKHEAD, REPO, SOAK, Stack, fake_config, free_port, running

KILLS = 20 if SOAK else 3


@pytest.fixture
def url(postgres_server: Server) -> str:
    return postgres_server.new_database()


@pytest.fixture
def pair(tmp_path: Path, url: str) -> Iterator[list[Stack]]:
    with replicas(tmp_path, url) as stacks:
        yield stacks


def test_keys_count_on_all_of_them_and_end_within_a_second(pair: list[Stack]) -> None:
    first, second = pair
    key = second.cli("keys", "create", "acme", "--name", "mine").strip()
    (row,) = [line for line in first.cli("keys", "list", "acme").splitlines() if "mine" in line]
    for stack in pair:
        stack.key = key
        assert complete(stack).status_code == 200, "it works at once"
    first.cli("keys", "revoke", row.split()[0])
    revoked_at = time.monotonic()
    for stack in pair:
        eventually(partial(_is_refused, stack), "it still works")
    assert time.monotonic() - revoked_at < 5, "a second, on a machine that does nothing else"


def test_what_one_has_served_the_other_tells(pair: list[Stack], url: str) -> None:
    first, second = pair
    answer = complete(first)
    with second.client() as client:
        rows = client.get("/v1/usage/export", params={"format": "jsonl"}).text
    assert answer.headers["x-request-id"] in rows
    told = second.cli("usage", "export", "--tenant", "acme", "--format", "jsonl")
    assert answer.headers["x-request-id"] in told
    assert {row["config_hash"] for row in records(url)} not in ({None}, {""})
    assert "has the schema of this version already" in second.cli("migrate")
    assert "pg_dump" in first.cli("backup", ok=False)
    assert "pg_dump" in first.cli("restore", "nothing.tar.gz", ok=False)


def test_kill_9_of_one_under_load(pair: list[Stack], url: str) -> None:
    """Its clients get no end, or are billed; the other goes on; nothing stays open."""
    first, second = pair
    with Load(first, 4, streams=[True, False]) as there, Load(second, 4, streams=[True]) as here:
        for _ in range(KILLS):
            there.wait_for_more(10)
            here.wait_for_more(10)
            assert first.process is not None
            first.kill(first.process.pid)
            first.process.wait()
            assert first.process.stdout is not None
            first.process.stdout.close()
            here.wait_for_more(10)
            first.start()
        there.wait_for_more(10)
    wait_until_none_is_open(url)
    check_books(url, there.ended + here.ended)
    assert any(row["state"] == "orphaned" for row in records(url))
    for stack in pair:
        assert stack.cli("ledger", "reconcile")
    eventually(partial(_all_sealed, url), "not all is sealed")
    assert second.cli("ledger", "verify")


def test_what_one_left_that_doesn_t_come_back_is_closed_by_the_other(
    pair: list[Stack], url: str
) -> None:
    first, second = pair
    left, goes_on = Stream(first), Stream(second, LONG | {"max_tokens": 20_000})
    assert first.process is not None
    first.kill(first.process.pid)
    first.process.wait()
    eventually(lambda: _states(url)[left.request_id] == "orphaned", "it stays open")
    assert _states(url)[goes_on.request_id] == "open", "who lives is spared"
    os.kill(second.worker_pid(), signal.SIGKILL)
    goes_on.end()
    wait_until_none_is_open(url)


def test_one_that_stood_still_is_given_up_and_its_clients_get_no_end(
    pair: list[Stack], url: str
) -> None:
    first, second = pair
    long = Stream(first)
    worker = first.worker_pid()
    os.kill(worker, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + LEASE_S + 60
        while _states(url)[long.request_id] == "open":
            assert time.monotonic() < deadline
            assert complete(second).status_code == 200, "a stopped one holds up nobody"
            time.sleep(0.5)
    finally:
        os.kill(worker, signal.SIGCONT)
    assert DONE not in long.end()
    (row,) = [row for row in records(url) if row["request_id"] == long.request_id]
    assert (row["state"], row["billable"]) == ("orphaned", 0)
    eventually(lambda: complete(first).status_code == 200, "it doesn't come back")
    wait_until_none_is_open(url)


def test_the_server_ends_its_sessions_under_load(
    pair: list[Stack], url: str, postgres_server: Server
) -> None:
    first, second = pair
    with Load(first, 4) as there, Load(second, 4) as here:
        for _ in range(KILLS):
            there.wait_for_more(10)
            here.wait_for_more(10)
            end_sessions(postgres_server)
        there.wait_for_more(10)
        here.wait_for_more(10)
    wait_until_none_is_open(url)
    check_books(url, there.ended + here.ended)


def test_the_server_is_killed_and_comes_back(tmp_path: Path) -> None:
    """Meanwhile nothing is served that can't be recorded; then it goes on by itself."""
    with server() as own:
        url = own.new_database()
        with replicas(tmp_path, url, count=1) as (stack,), Load(stack, 4) as load:
            load.wait_for_more(20)
            own.stop(signal.SIGQUIT)
            eventually(lambda: complete(stack).status_code == 503, "it serves without a store")
            own.start()
            load.wait_for_more(20)
            load.__exit__()
            wait_until_none_is_open(url)
            check_books(url, load.ended)


def test_another_root_secret_is_refused(pair: list[Stack], tmp_path: Path, url: str) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "bulkhead.toml").write_text(fake_config())
    environ = {"BULKHEAD_STORE_URL": url, "BULKHEAD_ROOT_SECRET": "cd" * 32}
    said = _refused(tmp_path / "other", environ)
    assert "the root secret isn't the one that this store" in said
    assert "set BULKHEAD_ROOT_SECRET" in said
    assert ROOT not in said


def test_a_second_gateway_of_a_sqlite_store_is_told_of_postgresql(tmp_path: Path) -> None:
    with running(tmp_path, fake_config(), "serve") as stack:
        said = _refused(tmp_path, {"BULKHEAD_STATE": str(stack.state)})
    assert "several share a PostgreSQL database, which `store.url` names" in said


def _refused(folder: Path, environ: dict[str, str]) -> str:
    done = subprocess.run(
        [
            *BULKHEAD,
            "gateway",
            "--config",
            str(folder / "bulkhead.toml"),
            "--port",
            "1",
            "--admin-port",
            str(free_port()),
        ],
        capture_output=True,
        text=True,
        cwd=REPO,
        check=False,
        timeout=120,
        env=os.environ | environ,
    )
    assert done.returncode != 0
    return done.stderr


def _all_sealed(url: str) -> bool:
    return rows_of(url, "SELECT count(*) FROM usage_record") == rows_of(
        url, "SELECT count(*) FROM seal"
    )


def _is_refused(stack: Stack) -> bool:
    return complete(stack).status_code == 401


def _states(url: str) -> dict[str, str]:
    return {row["request_id"]: row["state"] for row in records(url)}
