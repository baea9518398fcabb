"""Real host processes: their handshake, their deaths, and what takes their place."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from runtime.capability import Signer
from runtime.child import Child, StartFailed
from runtime.host import HostSpec
from runtime.pool import HostState, HostView, Pool
from runtime.probe import client
from runtime.sections import HostSettings

REPO = Path(__file__).parents[2]
ENV = dict(os.environ) | {"PYTHONPATH": str(REPO)}
SIGNER = Signer(bytes(range(32)))
QUICK = HostSettings(
    start_s=20, health_every_s=0.1, health_timeout_s=0.2, backoff_first_s=0.05, backoff_max_s=0.2
)


def spec(folder: Path, **changes: Any) -> HostSpec:
    base = HostSpec(
        id="host-0-1",
        model="echo",
        engine="fake",
        path="",
        socket=str(folder / "h.sock"),
        public_keys=SIGNER.public_keys(),
        default_max_tokens=16,
        drain_s=10,
        options={"faults": True, "step_s": 0.001},
    )
    return structs.replace(base, **changes)


def authorization() -> dict[str, str]:
    return {"authorization": f"Bearer {SIGNER.mint('d', 'echo')}"}


async def complete(socket: str, prompt: str = "abc", max_tokens: int = 4) -> Any:
    body = {"model": "echo", "prompt": prompt, "max_tokens": max_tokens}
    async with client(socket, 20) as http:
        answer = await http.post("/v1/completions", json=body, headers=authorization())
        return answer.json()


async def until(condition: Callable[[], bool], timeout_s: float = 15) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@asynccontextmanager
async def child_of(given: HostSpec) -> AsyncIterator[Child]:
    child = await Child.start(given, ENV, 20)
    try:
        yield child
    finally:
        await child.kill()


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
        ({"public_keys": {"1": "AAAA"}}, "exited with 1 before it was ready"),
        ({"socket": "/nowhere/h.sock"}, "exited with 1 before it was ready"),
    ],
    ids=["wrong options", "unknown engine", "bad key", "no place for a socket"],
)
async def test_a_failed_start_tells_the_host_s_own_reason(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(StartFailed) as told:
        await Child.start(spec(tmp_path, **changes), ENV, 20)
    assert reason in str(told.value)


async def test_a_host_that_isn_t_ready_in_time_is_killed(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"not ready after 0\.01 s"):
        await Child.start(spec(tmp_path), ENV, 0.01)


async def test_a_host_that_writes_nonsense_first_is_a_failed_start(tmp_path: Path) -> None:
    """An engine's library may print; the reason must reach the node, not break it."""
    noisy = tmp_path / "sitecustomize.py"
    noisy.write_text("print('welcome to this library')\n")
    env = ENV | {"PYTHONPATH": f"{tmp_path}:{REPO}"}
    with pytest.raises(StartFailed):
        await (await Child.start(spec(tmp_path), env, 20)).kill()


async def test_a_host_dies_when_its_node_s_end_of_stdin_closes(tmp_path: Path) -> None:
    """Also in the middle of an answer: nothing outlives the node."""
    async with child_of(spec(tmp_path, options={"step_s": 0.05})) as child:
        running = asyncio.ensure_future(complete(child.spec.socket, max_tokens=1000))
        await asyncio.sleep(0.1)
        assert child._process.stdin
        child._process.stdin.close()
        assert await asyncio.wait_for(child.exited(), 3) == 0
        await asyncio.wait((running,))
        assert running.exception() is not None


async def test_signals_to_the_group_leave_a_host_alone(tmp_path: Path) -> None:
    """Ctrl-C reaches all processes; the node decides when its hosts end."""
    async with child_of(spec(tmp_path)) as child:
        os.kill(child.pid, signal.SIGINT)
        os.kill(child.pid, signal.SIGTERM)
        assert (await complete(child.spec.socket))["usage"]["completion_tokens"] == 4


async def test_a_drain_lets_running_answers_end(tmp_path: Path) -> None:
    async with child_of(spec(tmp_path, options={"step_s": 0.01})) as child:
        running = asyncio.ensure_future(complete(child.spec.socket, max_tokens=50))
        await stats_where(child.spec.socket, "running", 1)
        await child.drain(10)
        assert (await running)["usage"]["completion_tokens"] == 50
        assert is_gone(child.pid)


async def test_a_drain_that_takes_too_long_is_cut(tmp_path: Path) -> None:
    async with child_of(spec(tmp_path, options={"step_s": 0.05})) as child:
        running = asyncio.ensure_future(complete(child.spec.socket, max_tokens=8000))
        await stats_where(child.spec.socket, "running", 1)
        began = time.monotonic()
        await child.drain(0.3)
        assert time.monotonic() - began < 3
        await asyncio.wait((running,))
        assert running.exception() is not None


async def stats_where(socket: str, name: str, value: int) -> None:
    async with client(socket, 5) as http, asyncio.timeout(10):
        while (await http.get("/stats")).json()[name] != value:
            await asyncio.sleep(0.005)


class Kept:
    """A pool and all the views it has shown."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder, self.changes = folder, changes
        self.views: list[HostView] = []
        self.pool = Pool(self._spec, ENV, QUICK, lambda: self.views.append(self.pool.view))

    def _spec(self, start: int) -> HostSpec:
        name = f"host-0-{start}"
        return spec(self.folder, id=name, socket=str(self.folder / f"{name}.sock"), **self.changes)

    @property
    def view(self) -> HostView:
        return self.pool.view

    def is_ready(self, starts: int) -> bool:
        return self.view.state is HostState.READY and self.view.starts == starts


@asynccontextmanager
async def kept(folder: Path, **changes: Any) -> AsyncIterator[Kept]:
    found = Kept(folder, **changes)
    found.pool.start()
    try:
        yield found
    finally:
        await found.pool.stop(5)


async def test_a_killed_host_is_started_again_and_said_so(tmp_path: Path) -> None:
    async with kept(tmp_path) as pool:
        await until(lambda: pool.is_ready(1))
        first = pool.view
        os.kill(first.pid, signal.SIGKILL)
        await until(lambda: pool.is_ready(2))
        assert [view.state.value for view in pool.views] == [
            "starting", "ready", "waiting", "starting", "ready",
        ]  # fmt: skip
        assert pool.view.reason == "exited with -9"
        assert (pool.view.id, pool.view.pid) != (first.id, first.pid)
        assert not Path(first.socket).exists()
        assert (await complete(pool.view.socket))["choices"][0]["text"] == "abca"
    assert is_gone(pool.view.pid)
    assert pool.view.state is HostState.STOPPED


async def test_a_hung_host_is_replaced(tmp_path: Path) -> None:
    async with kept(tmp_path) as pool:
        await until(lambda: pool.is_ready(1))
        first = pool.view.pid
        os.kill(first, signal.SIGSTOP)
        await until(lambda: pool.is_ready(2))
        assert pool.view.reason == "stopped answering"
        assert is_gone(first)


async def test_a_host_whose_engine_fails_is_replaced(tmp_path: Path) -> None:
    async with kept(tmp_path) as pool:
        await until(lambda: pool.is_ready(1))
        answer = await complete(pool.view.socket, "engine, fail", 20)
        assert answer["error"]["code"] == "engine_failed"
        await until(lambda: pool.is_ready(2))
        assert pool.view.reason in ("exited with 1", "stopped answering")


async def test_a_host_that_can_t_start_is_tried_again_with_longer_waits(tmp_path: Path) -> None:
    began = time.monotonic()
    async with kept(tmp_path, options={"bogus": 1}) as pool:
        await until(lambda: pool.view.starts == 3)
        waiting = [view for view in pool.views if view.state is HostState.WAITING]
        assert all("bogus" in view.reason for view in waiting)
        assert all(view.socket == "" and view.pid == 0 for view in waiting)
        assert time.monotonic() - began >= 0.05 + 0.1


async def test_stopping_a_pool_lets_running_answers_end(tmp_path: Path) -> None:
    async with kept(tmp_path, options={"step_s": 0.01}) as pool:
        await until(lambda: pool.is_ready(1))
        running = asyncio.ensure_future(complete(pool.view.socket, max_tokens=100))
        await stats_where(pool.view.socket, "running", 1)
        await pool.pool.stop(10)
        assert (await running)["usage"]["completion_tokens"] == 100
        assert [view.state.value for view in pool.views[-2:]] == ["draining", "stopped"]


async def test_a_pool_stopped_while_its_host_starts_leaves_no_process(tmp_path: Path) -> None:
    async with kept(tmp_path) as pool:
        await until(lambda: bool(pool.views))
        await asyncio.sleep(0.05)
        await pool.pool.stop(5)
        assert pool.view.state is HostState.STOPPED
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children]
    assert not any(b"runtime.host" in command for command in commands)


async def test_a_process_that_can_t_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine may be out of processes or descriptors for a while."""
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(StartFailed, match="no process could be started: No such file"):
        await Child.start(spec(tmp_path), ENV, 20)
