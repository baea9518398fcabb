"""Hosts that die or never start: tried again, more and more rarely, until told otherwise."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from tests.runtime.hosts import host_children
from tests.runtime.nodes import (
    COLD,
    model,
    other_than,
    ready,
    running,
    settings,
    state_of,
)


@pytest.fixture(autouse=True)
def _short_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sockets of this test lie in its own folder, not beside those of a running Bulkhead."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


async def test_a_killed_host_is_replaced_as_long_as_it_is_needed(tmp_path: Path) -> None:
    async with running(settings(tmp_path, COLD)) as node:
        (host,) = await node.ready(echo=1)
        os.kill(host["pid"], signal.SIGKILL)
        told = await node.until(lambda told: other_than(told, host), echo=1)
        (second,) = ready(told)
        assert second["starts"] == 2
        (view,) = (await node.told())["models"]
        assert (view["failures"], "was killed" in view["reason"]) == (1, True)
        await node.demand()
        os.kill(second["pid"], signal.SIGKILL)
        await node.until(lambda told: not told["hosts"] and state_of(told) == "cold")


async def test_a_host_that_can_t_start_is_tried_more_and_more_rarely_and_then_has_failed(
    tmp_path: Path,
) -> None:
    flag = tmp_path / "fail"
    flag.touch()
    given = model(options={"fail_file": str(flag)})
    hosts = {"max_failures": 3, "retry_failed_s": 3600}
    async with running(settings(tmp_path, given, **hosts)) as node:
        began = time.monotonic()
        told = await node.until(lambda told: state_of(told) == "failed", echo=1)
        assert time.monotonic() - began >= 0.05 + 0.1
        (view,) = told["models"]
        assert (view["failures"], view["hosts"]) == (3, 0)
        assert "told to fail" in view["reason"]
        assert time.time() + 3000 < view["retry_at"] < time.time() + 3601
        flag.unlink()
        await node.demand(echo=1)
        await asyncio.sleep(0.5)
        assert state_of(await node.told()) == "failed", "it isn't tried before its time"
        answer = await node.http.post("/models/echo/restart")
        assert answer.status_code == 200
        await node.ready(echo=1)
        (view,) = (await node.told())["models"]
        assert (view["failures"], view["reason"], view["retry_at"]) == (0, "", 0)


async def test_a_failed_model_is_tried_again_by_a_request_after_a_while(tmp_path: Path) -> None:
    flag = tmp_path / "fail"
    flag.touch()
    given = model(options={"fail_file": str(flag)})
    hosts = {"max_failures": 2, "retry_failed_s": 0.5}
    async with running(settings(tmp_path, given, **hosts)) as node:
        await node.until(lambda told: state_of(told) == "failed", echo=1)
        await node.demand()
        await node.until(lambda told: state_of(told) == "cold")
        assert host_children() == [], "nobody asks, so nothing is tried"
        await node.until(lambda told: state_of(told) == "failed", echo=1)
        flag.unlink()
        await node.ready(echo=1)


async def test_a_deployment_forgives_a_failed_model(tmp_path: Path) -> None:
    broken = settings(tmp_path, model(options={"bogus": 1}), max_failures=1)
    async with running(broken) as node:
        await node.until(lambda told: state_of(told) == "failed", echo=1)
        node.node.apply(settings(tmp_path, model()), 8)
        await node.ready(echo=1)
        assert (await node.told())["deployment"] == 8


async def test_a_machine_without_room_for_a_process_is_a_failure_like_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(settings(tmp_path, COLD, max_failures=2)) as node:
        with monkeypatch.context() as patch:
            patch.setattr("sys.executable", str(tmp_path / "python"))
            told = await node.until(lambda told: state_of(told) == "failed", echo=1)
            assert "no process could be started" in told["models"][0]["reason"]
        await node.http.post("/models/echo/restart")
        await node.ready(echo=1)
