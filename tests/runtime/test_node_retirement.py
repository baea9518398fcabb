"""Hosts whose engine asks to be replaced: they drain, others take over, and it is no failure."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runtime.node.probe import client
from tests.runtime.nodes import (
    Running,
    complete,
    headers,
    in_flight,
    model,
    other_than,
    ready,
    running,
    settings,
    state_of,
)

REASON = "told to retire"
FAULTY = {"faults": True, "step_s": 0.005}


@pytest.fixture(autouse=True)
def _short_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sockets of this test lie in its own folder, not beside those of a running Bulkhead."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


async def retire(node: Running, host: Any, max_tokens: int = 6) -> Any:
    """An answer that makes its engine ask to be replaced."""
    body = {"model": host["model"], "prompt": "retire", "max_tokens": max_tokens}
    async with client(host["socket"], 60) as http:
        answer = await http.post("/v1/completions", json=body, headers=headers(node))
        return answer.json()


def is_not_ready(host_id: str, told: Any) -> bool:
    return host_id not in [host["id"] for host in ready(told)]


async def test_it_drains_with_its_reason_and_what_runs_there_ends(tmp_path: Path) -> None:
    given = model(min_hosts=1, options=FAULTY)
    async with running(settings(tmp_path, given)) as node:
        (host,) = await node.ready()
        long = asyncio.ensure_future(retire(node, host, 1000))
        await in_flight(host)
        told = await node.until(lambda told: other_than(told, host))
        (old,) = [one for one in told["hosts"] if one["id"] == host["id"]]
        assert (old["state"], old["reason"]) == ("draining", REASON)
        assert not long.done()
        assert (await complete(node, ready(told)[0]))["usage"]["completion_tokens"] == 2
        assert (await long)["usage"]["completion_tokens"] == 1000
        told = await node.until(lambda told: len(told["hosts"]) == 1)
        (view,) = told["models"]
        assert (view["retirement"], view["retired_at"] > 0) == (REASON, True)
        assert (view["state"], view["failures"], view["reason"]) == ("ready", 0, "")
        await node.http.post("/models/echo/restart")
        assert (await node.told())["models"][0]["retirement"] == ""


async def test_a_model_whose_hosts_all_ask_for_it_has_failed(tmp_path: Path) -> None:
    """Else hosts would be started and thrown away for ever."""
    given = model(min_hosts=1, options=FAULTY)
    async with running(settings(tmp_path, given, max_failures=2)) as node:
        for failures in (0, 1, 2):
            (host,) = await node.ready()
            await retire(node, host)
            told = await node.until(partial(is_not_ready, host["id"]))
            assert told["models"][0]["failures"] == failures
        assert state_of(told) == "failed"
        assert told["models"][0]["reason"] == REASON
