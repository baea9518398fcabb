"""Two gateways that share one PostgreSQL database, and what is in it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from gateway.leases import LEASE_S
from gateway.store.address import Postgres
from gateway.store.connection import open_for_reading
from gateway.store.errors import StoreUnavailable
from gateway.store.sql import dicts
from tests.postgres import PASSWORD, Server
from tests.stack import Stack, fake_config, running

ROOT = "ab" * 32
CONFIG = fake_config(step_s=0.005, more="\n[hosts]\nmax_failures = 20\n")
REAPED_S = LEASE_S + 30  # noisy cores included


@contextlib.contextmanager
def replicas(folder: Path, url: str, count: int = 2, more: str = "") -> Iterator[list[Stack]]:
    """So many gateways, each with its own folder; all have the key of `acme`."""
    environ = {"BULKHEAD_STORE_URL": url, "BULKHEAD_ROOT_SECRET": ROOT}
    with contextlib.ExitStack() as opened:
        stacks = []
        for number in range(count):
            home = folder / f"r{number}"
            home.mkdir()
            one = running(home, CONFIG + more, "serve", environ=dict(environ))
            stacks.append(opened.enter_context(one))
        stacks[0].cli("tenants", "create", "acme")
        key = stacks[0].cli("keys", "create", "acme").strip()
        for stack in stacks:
            stack.key = key
        yield stacks
        for stack in stacks:
            log = stack.log.read_text()
            assert "Traceback" not in log, log[-3000:]
            assert PASSWORD not in log
            assert "canary-p@ss" not in log


def records(url: str) -> list[dict[str, Any]]:
    """All records of the database, open ones too."""
    with closing(open_for_reading(Postgres(url))) as db:
        return dicts(db.execute("SELECT * FROM usage_record"))


def rows_of(url: str, sql: str) -> list[Any]:
    with closing(open_for_reading(Postgres(url))) as db:
        return db.execute(sql).fetchall()


def check_books(url: str, ended: list[str]) -> None:
    """Who received the end of an answer is billed for it, once; sums are those of the lines."""
    rows = records(url)
    billed = [row["request_id"] for row in rows if row["billable"]]
    assert len(billed) == len(set(billed))
    assert set(ended) <= set(billed), "every answer whose end was received is billed"
    assert len(ended) > 10, "there was load"
    closed = sorted(row["seq"] for row in rows if row["state"] != "open")
    assert closed == list(range(1, len(closed) + 1)), "numbered without a gap"
    with closing(open_for_reading(Postgres(url))) as db:
        (lines,) = db.execute("SELECT sum(amount_pico) FROM usage_line").fetchone()
        (rollup,) = db.execute("SELECT sum(amount_pico) FROM usage_rollup").fetchone()
    assert sum(row["amount_pico"] or 0 for row in rows) == lines == rollup


def wait_until_none_is_open(url: str, patience_s: float = REAPED_S) -> None:
    deadline = time.monotonic() + patience_s
    while any(row["state"] == "open" for row in records(url)):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def end_sessions(server: Server) -> None:
    """As an administrator does; whoever had one connects again."""
    with psycopg.connect(server.url("postgres"), autocommit=True) as db:
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'bulkhead' AND pid <> pg_backend_pid()"
        )


def is_down(url: str) -> bool:
    try:
        open_for_reading(Postgres(url)).close()
    except StoreUnavailable:
        return True
    return False
