"""One real host from its start to its end: how it fails, and how it goes when it is told to."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import structs

from runtime.node.life import HostLife, Surroundings
from runtime.node_wire import HostState, HostView
from tests.runtime.hosts import (
    ENV,
    QUICK,
    complete,
    host_children,
    is_gone,
    spec,
    stats_where,
    until,
)


class Lived:
    """A host's life, the views that it has shown, and a gate for what gateways acknowledge."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.views: list[HostView] = []
        self.know = asyncio.Event()
        self.know.set()
        around = Surroundings(ENV, lambda: self.views.append(self.life.view), self.know.wait)
        self.life = HostLife(spec(folder, **changes), 1, QUICK, around)
        self.task = asyncio.ensure_future(self.life.run())

    @property
    def view(self) -> HostView:
        return self.life.view

    async def ready(self) -> None:
        await until(lambda: self.view.state is HostState.READY)

    async def ended(self, timeout_s: float = 30) -> str:
        return await asyncio.wait_for(asyncio.shield(self.task), timeout_s)


@asynccontextmanager
async def living(folder: Path, **changes: Any) -> AsyncIterator[Lived]:
    lived = Lived(folder, **changes)
    try:
        yield lived
    finally:
        lived.life.retire("the test ends", 0)
        await lived.task
        assert host_children() == []


async def test_a_ready_host_says_where_and_how_large_it_is(tmp_path: Path) -> None:
    async with living(tmp_path) as host:
        await host.ready()
        assert (await complete(host.view.socket))["usage"]["completion_tokens"] == 4
        assert host.view.rss_bytes > 10 << 20
        assert abs(host.view.since - time.time()) < 30
        assert [view.state.value for view in host.views] == ["ready"]


async def test_it_is_measured_while_it_serves(tmp_path: Path) -> None:
    async with living(tmp_path, options={"step_s": 0.05}) as host:
        await host.ready()
        running = asyncio.ensure_future(complete(host.view.socket, max_tokens=40))
        await until(lambda: host.view.in_flight == 1)
        await running
        await until(lambda: host.view.in_flight == 0)
        assert len(host.views) == 1, "a figure is no change of state"


async def test_a_killed_host_failed(tmp_path: Path) -> None:
    async with living(tmp_path) as host:
        await host.ready()
        os.kill(host.view.pid, signal.SIGKILL)
        assert "was killed" in await host.ended()
        assert not Path(host.view.socket).exists()


async def test_a_host_that_hangs_failed_and_is_ended(tmp_path: Path) -> None:
    async with living(tmp_path) as host:
        await host.ready()
        os.kill(host.view.pid, signal.SIGSTOP)
        assert await host.ended() == "stopped answering"
        assert is_gone(host.view.pid)


async def test_a_host_whose_engine_fails_ends_and_says_so_to_who_runs_there(tmp_path: Path) -> None:
    async with living(tmp_path) as host:
        await host.ready()
        answer = await complete(host.view.socket, "engine, fail", 20)
        assert answer["error"]["code"] == "engine_failed"
        assert await host.ended() in ("exited with 1", "stopped answering")


async def test_a_host_that_can_t_start_tells_why(tmp_path: Path) -> None:
    async with living(tmp_path, options={"bogus": 1}) as host:
        assert "bogus" in await host.ended()
        assert host.views == []


async def test_told_to_go_it_waits_for_gateways_and_then_for_what_runs(tmp_path: Path) -> None:
    async with living(tmp_path, options={"step_s": 0.01}) as host:
        await host.ready()
        host.know.clear()
        host.life.retire("idle", 60)
        assert (host.view.state, host.view.reason) == (HostState.DRAINING, "idle")
        await asyncio.sleep(0.3)
        answer = asyncio.ensure_future(complete(host.view.socket, max_tokens=100))
        await stats_where(host.view.socket, "running", 1)
        host.know.set()
        assert (await answer)["usage"]["completion_tokens"] == 100, "sent before it was known"
        assert await host.ended() == ""


async def test_what_takes_longer_than_its_patience_is_cut(tmp_path: Path) -> None:
    async with living(tmp_path, options={"step_s": 0.05}) as host:
        await host.ready()
        answer = asyncio.ensure_future(complete(host.view.socket, max_tokens=8000))
        await stats_where(host.view.socket, "running", 1)
        host.life.retire("idle", 600)
        await asyncio.sleep(0.1)
        assert not host.task.done()
        host.life.retire("the node stops", 0.3)  # told again: the earlier end counts
        host.life.retire("the node stops", 600)
        assert await host.ended(20) == ""
        assert host.view.reason == "idle"
        await asyncio.wait((answer,))
        assert answer.exception() is not None


async def test_a_host_that_hangs_while_it_drains_is_ended(tmp_path: Path) -> None:
    async with living(tmp_path, options={"step_s": 0.05}) as host:
        await host.ready()
        answer = asyncio.ensure_future(complete(host.view.socket, max_tokens=8000))
        await stats_where(host.view.socket, "running", 1)
        host.life.retire("idle", 600)
        os.kill(host.view.pid, signal.SIGSTOP)
        await host.ended()
        assert is_gone(host.view.pid)
        await asyncio.wait((answer,))
        assert answer.exception() is not None


async def test_told_to_go_while_it_starts_it_ends_at_once(tmp_path: Path) -> None:
    async with living(tmp_path, options={"start_s": 600}) as host:
        await until(lambda: host_children() != [])
        host.life.retire("idle", 600)
        assert await host.ended(20) == ""
        assert host.views[-1].state is HostState.DRAINING


async def test_told_to_go_before_there_is_a_process_none_stays(tmp_path: Path) -> None:
    async with living(tmp_path) as host:
        host.life.retire("idle", 600)
        assert await host.ended(20) == ""


async def test_a_start_that_takes_too_long_is_a_failure(tmp_path: Path) -> None:
    async with living(tmp_path, options={"start_s": 600}) as host:
        host.life._settings = structs.replace(QUICK, start_s=0.5)
        assert "not ready after 0.5 s" in await host.ended()


async def test_requests_that_a_check_stopped_are_counted(tmp_path: Path) -> None:
    async with living(tmp_path) as host:
        await host.ready()
        answer = await complete(host.view.socket, "integrity", 20)
        assert answer["error"]["code"] == "kv_integrity_abort"
        await until(lambda: host.view.integrity_aborts == 1)
