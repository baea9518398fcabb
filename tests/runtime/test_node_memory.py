"""One memory budget for the models of a node: who waits, who gives way, who never fits."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from msgspec import structs

from tests.runtime.hosts import host_children
from tests.runtime.nodes import (
    MIB,
    complete,
    in_flight,
    model,
    ready,
    running,
    settings,
    state_of,
)


@pytest.fixture(autouse=True)
def _short_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sockets of this test lie in its own folder, not beside those of a running Bulkhead."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


async def test_two_models_share_one_place_and_the_idle_one_gives_way(tmp_path: Path) -> None:
    one, two = model("one"), model("two")  # idle for 300 s before they stop by themselves
    async with running(settings(tmp_path, one, two, memory_bytes=100 * MIB)) as node:
        await node.ready(model="one", one=1)
        await node.demand()
        await node.ready(model="two", two=1)
        told = await node.told()
        assert ready(told, "one") == []
        assert len(host_children()) == 1
        await node.demand()
        await node.ready(model="one", one=1)


async def test_a_busy_one_gives_way_only_after_a_while(tmp_path: Path) -> None:
    """Its answer ends; meanwhile the other waits, and is said to wait for memory."""
    one, two = model("one"), model("two")
    given = settings(tmp_path, one, two, memory_bytes=100 * MIB, yield_s=1.5)
    async with running(given) as node:
        (host,) = await node.ready(model="one", one=1)
        since = time.monotonic()
        answer = asyncio.ensure_future(complete(node, host, 400))
        await in_flight(host)
        told = await node.until(
            lambda told: state_of(told, "two") == "waiting_for_memory", one=1, two=1
        )
        assert ready(told, "one")
        told = await node.until(lambda told: not ready(told, "one"), one=1, two=1)
        assert time.monotonic() - since >= 1.5
        assert "memory" in next(h["reason"] for h in told["hosts"])
        await node.ready(model="two", two=1)
        assert (await answer)["usage"]["completion_tokens"] == 400


async def test_what_is_promised_doesn_t_give_way(tmp_path: Path) -> None:
    kept, other = model("kept", min_hosts=1), model("other", max_hosts=2)
    given = settings(tmp_path, kept, other, memory_bytes=130 * MIB, yield_s=0.2)
    async with running(given) as node:
        (host,) = await node.ready(model="kept")
        await node.ready(model="other", other=1)
        for _ in range(20):
            await node.demand(other=1000)  # it would like to have two
            await asyncio.sleep(0.05)
        told = await node.told()
        assert [h["id"] for h in ready(told, "kept")] == [host["id"]]
        assert len(ready(told, "other")) == 1


async def test_a_size_that_is_corrected_counts_for_hosts_that_run(tmp_path: Path) -> None:
    one, two = model("one", min_hosts=1), model("two", min_hosts=1)
    async with running(settings(tmp_path, one, memory_bytes=100 * MIB)) as node:
        (host,) = await node.ready(model="one")
        smaller = structs.replace(one, memory_bytes=36 * MIB)
        node.node.apply(settings(tmp_path, smaller, two, memory_bytes=100 * MIB))
        await node.ready(model="two")
        assert ready(await node.told(), "one")[0]["id"] == host["id"]


async def test_a_model_that_never_fits_has_failed_and_says_why(tmp_path: Path) -> None:
    big, small = model("big", memory_bytes=200 * MIB), model("small")
    async with running(settings(tmp_path, big, small, memory_bytes=100 * MIB)) as node:
        await node.ready(model="small", big=1, small=1)
        told = await node.told()
        assert state_of(told, "big") == "failed"
        assert f"budget of {100 * MIB}" in told["models"][0]["reason"]
        node.node.apply(settings(tmp_path, big, small, memory_bytes=300 * MIB))
        await node.ready(model="big", big=1)
