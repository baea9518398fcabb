"""A disk that is full while it serves: nothing is served unbilled, and it recovers by itself."""

from __future__ import annotations

import asyncio
import datetime
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest

from gateway.store.connection import DATABASE, open_for_reading, open_for_writing
from gateway.usage import files as usage_files
from tests.e2e.ledger import exported
from tests.stack import Stack, fake_config, running

BODY = {"model": "echo", "prompt": "abcdefgh", "max_tokens": 8}


def works(command: list[str]) -> bool:
    """Whether this machine lets us do it. It may not, and nothing that CI installs changes that:
    so it's an expected failure, and no skip. The store's own tests meet SQLite's full disk anyhow.
    """
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """One whose state folder is a disk of its own, of 8 MB."""
    state = tmp_path / "state"
    state.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "tmpfs", str(state)]
    if not works(mount):
        pytest.xfail("no small disk can be mounted here")
    try:
        with running(tmp_path, fake_config(step_s=0.05)) as stack:
            yield stack
    finally:
        subprocess.run(["umount", "--lazy", str(state)], check=True)


def filler(folder: Path) -> Path:
    return folder / "filler"


def fill(folder: Path) -> bool:
    """Leave no byte free. SQLite gives back what its log took, so that it may take a few turns."""
    with filler(folder).open("ab", buffering=0) as file:
        for size in (65_536, 4096, 512):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
    return True


def fold_log(stack: Stack) -> None:
    """Have the log give back what it took: a long one has room for more, on a full disk."""
    path = stack.state / DATABASE

    def folded() -> bool:
        with closing(open_for_writing(path)) as db:
            is_busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not is_busy

    until(folded, "somebody reads all the time")


def ask(client: httpx.Client) -> int:
    return client.post("/v1/completions", json=BODY).status_code


def until(condition: Callable[[], bool], what: str, limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def num_open(stack: Stack) -> int:
    with closing(open_for_reading(stack.state / DATABASE)) as db:
        query = "SELECT count(*) FROM usage_record WHERE state = 'open'"
        count: int = db.execute(query).fetchone()[0]
        return count


def events(stack: Stack, name: str) -> int:
    return stack.log.read_text().count(name)


def test_a_full_disk_ends_answers_unbilled_and_room_on_it_ends_the_trouble(stack: Stack) -> None:
    with stack.client() as client:
        assert ask(client) == 200
        body = BODY | {"stream": True, "max_tokens": 40}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            first = next(lines)
            fold_log(stack)
            fill(stack.state)
            rest = "\n".join(lines)
        assert first.startswith("data: ")
        assert "[DONE]" not in rest
        assert "store_unavailable" in rest, rest
        until(lambda: fill(stack.state) and ask(client) == 503, "requests still find room")
        until(lambda: events(stack, "ledger_not_written") == 1, "it isn't told")
        filler(stack.state).unlink()
        until(lambda: num_open(stack) == 0, "the row stays open")
        until(lambda: events(stack, "ledger_written_again") == 1, "its end isn't told")
        assert ask(client) == 200
    assert [events(stack, f"ledger_{what}") for what in ("not_written", "written_again")] == [1, 1]
    lost = [row for row in exported(stack) if row["outcome"] == "crashed"]
    assert [row["billable"] for row in lost] == [False]
    now = datetime.datetime.now(datetime.UTC)
    asyncio.run(usage_files.closed(stack.state / DATABASE, now, 5))


def test_a_disk_that_is_read_only_for_a_while_does_no_more_harm(tmp_path: Path) -> None:
    with running(tmp_path, fake_config(step_s=0.05)) as stack, stack.client() as client:
        assert ask(client) == 200
        files = [str(stack.state / f"{DATABASE}{end}") for end in ("", "-wal")]
        body = BODY | {"stream": True, "max_tokens": 40}
        try:
            with client.stream("POST", "/v1/completions", json=body) as answer:
                lines = answer.iter_lines()
                next(lines)
                if not works(["chattr", "+i", *files]):
                    pytest.xfail("no file can be made immutable here")
                rest = "\n".join(lines)
            assert "[DONE]" not in rest
            assert ask(client) == 503
            until(lambda: events(stack, "ledger_not_written") == 1, "it isn't told")
        finally:
            works(["chattr", "-i", *files])
        until(lambda: events(stack, "ledger_written_again") == 1, "its end isn't told")
        until(lambda: ask(client) == 200, "it doesn't serve again")
        assert num_open(stack) == 0
        assert [row["outcome"] for row in exported(stack)].count("crashed") == 1
