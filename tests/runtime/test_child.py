"""Real host processes: their handshake, and their end."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from runtime.host.process import HostSpec
from runtime.node.child import Child, StartFailed, ending
from tests.runtime.hosts import ENV, REPO, complete, is_gone, spec, stats_where


@asynccontextmanager
async def child_of(
    given: HostSpec, env: dict[str, str] = ENV, timeout_s: float = 30
) -> AsyncIterator[Child]:
    child = await Child.spawn(given, env)
    try:
        await child.ready(timeout_s)
        yield child
    finally:
        await child.clean_up()


async def test_a_host_is_ready_when_it_serves_on_a_private_socket(tmp_path: Path) -> None:
    async with child_of(spec(tmp_path)) as child:
        assert stat.S_IMODE(os.stat(child.spec.socket).st_mode) == 0o600
        assert (await complete(child.spec.socket))["choices"][0]["text"] == "abca"
    assert is_gone(child.pid)
    assert not Path(child.spec.socket).exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"options": {"bogus": 1}}, "bogus"),
        ({"engine": "nope"}, "KeyError: 'nope'"),
        ({"options": {"fail_file": "/dev/null"}}, "EngineFailed: told to fail by /dev/null"),
        ({"options": {"held_bytes": 1 << 60}}, "MemoryError"),
        ({"public_keys": {"1": "AAAA"}}, "exited with 1 before it was ready"),
        ({"socket": "/nowhere/h.sock"}, "exited with 1 before it was ready"),
    ],
    ids=["wrong options", "unknown engine", "told to", "no memory", "bad key", "no socket"],
)
async def test_a_failed_start_tells_the_host_s_own_reason(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(StartFailed) as told:
        async with child_of(spec(tmp_path, **changes)):
            pass
    assert reason in str(told.value)


async def test_a_host_that_isn_t_ready_in_time_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"not ready after 0\.01 s"):
        async with child_of(spec(tmp_path), timeout_s=0.01):
            pass


async def test_a_host_that_writes_nonsense_first_is_a_failed_start(tmp_path: Path) -> None:
    """An engine's library may print; the reason must reach the node, not break it."""
    noisy = tmp_path / "sitecustomize.py"
    noisy.write_text("print('welcome to this library')\n")
    with pytest.raises(StartFailed, match="welcome to this library"):
        async with child_of(spec(tmp_path), ENV | {"PYTHONPATH": f"{tmp_path}:{REPO}"}):
            pass


async def test_a_process_that_can_t_be_started_is_a_failed_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine may be out of processes or descriptors for a while."""
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(StartFailed, match="no process could be started: No such file"):
        await Child.spawn(spec(tmp_path), ENV)


async def test_a_host_dies_when_its_node_s_end_of_stdin_closes(tmp_path: Path) -> None:
    """Also in the middle of an answer: nothing outlives the node."""
    async with child_of(spec(tmp_path, options={"step_s": 0.05})) as child:
        running = asyncio.ensure_future(complete(child.spec.socket, max_tokens=1000))
        await stats_where(child.spec.socket, "running", 1)
        assert child._process.stdin
        child._process.stdin.close()
        assert await asyncio.wait_for(child.exited(), 10) == 0
        await asyncio.wait((running,))
        assert running.exception() is not None


async def test_signals_to_the_group_leave_a_host_alone(tmp_path: Path) -> None:
    """Ctrl-C reaches all processes; the node decides when its hosts end."""
    async with child_of(spec(tmp_path)) as child:
        os.kill(child.pid, signal.SIGINT)
        os.kill(child.pid, signal.SIGTERM)
        assert (await complete(child.spec.socket))["usage"]["completion_tokens"] == 4


async def test_a_drain_lets_running_answers_end_and_then_the_host(tmp_path: Path) -> None:
    async with child_of(spec(tmp_path, options={"step_s": 0.01})) as child:
        running = asyncio.ensure_future(complete(child.spec.socket, max_tokens=50))
        await stats_where(child.spec.socket, "running", 1)
        child.drain()
        assert (await running)["usage"]["completion_tokens"] == 50
        assert await asyncio.wait_for(child.exited(), 10) == 0


def test_an_end_is_told_in_words() -> None:
    assert ending(3) == "exited with 3"
    assert "memory" in ending(-9)


def test_a_host_that_still_loads_ends_with_its_node(tmp_path: Path) -> None:
    """The node's end of the pipe closes however it dies. Loading would take an hour."""
    told = json.encode(spec(tmp_path, options={"start_s": 3600.0})) + b"\n"
    done = subprocess.run(
        [sys.executable, "-m", "runtime.host"], input=told, env=ENV, cwd=REPO,
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("told", [b"", b'{"id": "host-1", "mod'])
def test_a_host_whose_node_was_killed_before_it_had_said_all_ends_without_a_word(
    told: bytes,
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "runtime.host"], input=told, env=ENV, cwd=REPO,
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")
