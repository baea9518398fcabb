"""A node's hosts are replaced, by a new configuration or a restart, and nothing is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec import structs

from tests.runtime.nodes import (
    COLD,
    MIB,
    WARM,
    Running,
    complete,
    in_flight,
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


async def test_a_new_configuration_leaves_alone_what_it_doesn_t_change(tmp_path: Path) -> None:
    """Prices, limits and bounds restart nothing; models come and go."""
    one, gone = model("one", min_hosts=1), model("gone", min_hosts=1)
    async with running(settings(tmp_path, one, gone)) as node:
        (kept,) = await node.ready(model="one")
        await node.ready(model="gone")
        same = structs.replace(one, default_max_tokens=512, max_hosts=2, owned_by="other")
        node.node.apply(settings(tmp_path, model("new", min_hosts=1), same), 2)
        await node.ready(model="new")
        await node.until(lambda told: [m["id"] for m in told["models"]] == ["one", "new"])
        told = await node.told()
        assert len(told["hosts"]) == 2
        assert [h["id"] for h in ready(told, "one")] == [kept["id"]]
        node.node.apply(settings(tmp_path, one, gone), 3)
        await node.ready(model="gone")


async def test_a_request_that_came_before_its_model_s_removal_still_gets_a_host(
    tmp_path: Path,
) -> None:
    """Its gateway may hear of the removal a moment later than the node."""
    gone = model("gone", options={"start_s": 0.5})
    async with running(settings(tmp_path, WARM, gone)) as node:
        await node.demand(gone=1)
        await node.until(lambda told: state_of(told, "gone") == "starting", gone=1)
        node.node.apply(settings(tmp_path, WARM), 2)
        await node.ready(model="gone", gone=1)
        await node.demand()
        await node.until(lambda told: [m["id"] for m in told["models"]] == ["echo"])
        node.node.apply(settings(tmp_path, WARM, gone), 3)
        node.node.apply(settings(tmp_path, WARM), 4)
        await node.ready(model="gone", gone=1)  # also one that was cold
        await node.demand()
        await node.until(lambda told: [m["id"] for m in told["models"]] == ["echo"])


async def test_a_changed_model_gets_its_new_host_before_the_old_one_goes(tmp_path: Path) -> None:
    async with running(settings(tmp_path, WARM)) as node:
        (old,) = await node.ready()
        seen: list[int] = []
        follow = asyncio.ensure_future(_count_ready(node, seen))
        answer = asyncio.ensure_future(complete(node, old, 200))
        await in_flight(old)
        node.node.apply(settings(tmp_path, model(min_hosts=1, options={"max_running": 7})), 2)
        await node.until(lambda told: other_than(told, old))
        assert (await answer)["usage"]["completion_tokens"] == 200
        await node.until(lambda told: len(told["hosts"]) == 1)
        follow.cancel()
        assert min(seen) >= 1, "there was always one that took requests"


async def _count_ready(node: Running, seen: list[int]) -> None:
    version = 0
    while True:
        told = await node.told(version, 20)
        version = told["version"]
        seen.append(len(ready(told)))


async def test_without_memory_for_both_the_old_one_goes_first(tmp_path: Path) -> None:
    async with running(settings(tmp_path, WARM, memory_bytes=100 * MIB)) as node:
        (old,) = await node.ready()
        changed = model(min_hosts=1, options={"max_running": 7})
        node.node.apply(settings(tmp_path, changed, memory_bytes=100 * MIB), 2)
        await node.until(lambda told: other_than(told, old))


async def test_if_the_changed_one_can_t_start_the_old_one_goes_on(tmp_path: Path) -> None:
    async with running(settings(tmp_path, WARM)) as node:
        (old,) = await node.ready()
        broken = settings(tmp_path, model(min_hosts=1, options={"bogus": 1}), max_failures=2)
        node.node.apply(broken, 2)
        await node.until(lambda told: told["models"][0]["failures"] == 2)
        told = await node.told()
        assert [h["id"] for h in ready(told)] == [old["id"]]
        assert state_of(told) == "ready"
        assert "bogus" in told["models"][0]["reason"]


async def test_a_host_that_serves_well_doesn_t_make_failing_ones_start_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.node.pool.HEALTHY_S", 0.0)
    async with running(settings(tmp_path, WARM)) as node:
        (old,) = await node.ready()
        broken = model(min_hosts=1, options={"bogus": 1})
        given = settings(tmp_path, broken, max_failures=2, retry_failed_s=3600)
        node.node.apply(given, 2)
        told = await node.until(lambda told: told["models"][0]["failures"] == 2)
        await asyncio.sleep(1)
        assert (await node.told())["version"] == told["version"], "nothing is tried before its time"
        assert [h["id"] for h in ready(told)] == [old["id"]]


async def test_a_restart_replaces_hosts_and_loses_nothing(tmp_path: Path) -> None:
    slashed = model("@cf/meta/echo", min_hosts=1)
    async with running(settings(tmp_path, slashed)) as node:
        (old,) = await node.ready(model=slashed.id)
        answer = asyncio.ensure_future(complete(node, old, 100))
        await in_flight(old)
        assert (await node.http.post("/models/@cf%2Fmeta%2Fecho/restart")).status_code == 200
        await node.until(lambda told: other_than(told, old))
        assert (await answer)["usage"]["completion_tokens"] == 100


async def test_a_restart_is_answered_once_every_gateway_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the request after it would still be refused, for what was wrong before it."""
    monkeypatch.setattr("runtime.node.app.ACKNOWLEDGE_S", 60.0)
    async with running(settings(tmp_path, COLD)) as node:
        version = (await node.told())["version"]
        polls = asyncio.Event()
        begin = node.node.board.begin

        def seen(gateway: str, version: int) -> None:
            begin(gateway, version)
            polls.set()

        monkeypatch.setattr(node.node.board, "begin", seen)
        poll = asyncio.ensure_future(node.told(version, 20, gateway="g"))
        await polls.wait()
        restart = asyncio.ensure_future(node.http.post("/models/echo/restart"))
        told = await poll
        assert told["version"] > version
        await node.told()  # the node has had the time to answer something
        assert not restart.done(), "the gateway has yet to take in what it was told"
        last = asyncio.ensure_future(node.told(told["version"], 20, gateway="g"))  # I know
        assert (await restart).status_code == 200
        last.cancel()


async def test_a_restart_waits_for_no_gateway_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.node.app.ACKNOWLEDGE_S", 0.05)
    async with running(settings(tmp_path, COLD)) as node:
        node.node.board.begin("hangs", 0)
        assert (await node.http.post("/models/echo/restart")).status_code == 200
