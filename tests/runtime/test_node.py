"""A real node with real hosts: it starts them by demand, and tells of every change at once."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from runtime.node.node import Node
from runtime.node.probe import client
from runtime.rundir import node_socket
from tests.runtime.hosts import host_children
from tests.runtime.nodes import (
    ATTACHED,
    COLD,
    MIB,
    WARM,
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


@pytest.fixture(autouse=True)
def _short_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sockets of this test lie in its own folder, not beside those of a running Bulkhead."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


# what it tells


def test_a_node_that_starts_again_tells_no_version_of_before(tmp_path: Path) -> None:
    """Else who polls with the old version would take the new hosts for the old."""
    given = settings(tmp_path, WARM)
    assert Node(given).hosts().version < Node(given).hosts().version


async def test_the_node_tells_of_its_own_hosts_on_private_sockets(tmp_path: Path) -> None:
    async with running(settings(tmp_path, WARM, ATTACHED)) as node:
        (host,) = await node.ready()
        assert (host["model"], host["starts"]) == ("echo", 1)
        for path in (host["socket"], node_socket(tmp_path / "state")):
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(Path(host["socket"]).parent.stat().st_mode) == 0o700
        told = await node.told()
        assert [m["id"] for m in told["models"]] == ["echo"], "others' servers aren't its own"
        assert host["rss_bytes"] > 10 * MIB
    assert not list(Path(host["socket"]).parent.iterdir()), "a stopped node leaves nothing"


async def test_a_host_believes_the_gateway_that_shares_the_state_folder(tmp_path: Path) -> None:
    async with running(settings(tmp_path, WARM)) as node:
        (host,) = await node.ready()
        body = {"model": "echo", "prompt": "ab", "max_tokens": 2}
        async with client(host["socket"], 10) as http:
            for name, status in (("echo", 200), ("other", 401)):
                given = headers(node, name)
                answer = await http.post("/v1/completions", json=body, headers=given)
                assert answer.status_code == status


async def test_a_long_poll_wakes_at_a_change(tmp_path: Path) -> None:
    async with running(settings(tmp_path, WARM)) as node:
        (first,) = await node.ready()
        found = await node.told()
        poll = asyncio.ensure_future(node.told(found["version"], 20))
        await asyncio.sleep(0.05)
        assert not poll.done()
        died = time.monotonic()
        os.kill(first["pid"], signal.SIGKILL)
        heard = await poll
        assert time.monotonic() - died < 5
        assert heard["version"] > found["version"]
        assert ready(heard) == []
        told = await node.until(lambda told: other_than(told, first))
        assert ready(told)[0]["starts"] == 2


async def test_a_long_poll_ends_when_its_time_is_up(tmp_path: Path) -> None:
    async with running(settings(tmp_path, WARM)) as node:
        await node.ready()
        version = (await node.told())["version"]
        began = time.monotonic()
        assert (await node.told(version, 0.1))["version"] == version
        assert 0.1 <= time.monotonic() - began < 10
        await node.told(version - 1, 600)  # another version: at once


async def test_nonsense_is_refused(tmp_path: Path) -> None:
    async with running(settings(tmp_path, COLD)) as node:
        for answer in (
            await node.http.get("/hosts", params={"after": "x"}),
            await node.http.get("/hosts", params={"wait_s": "soon"}),
            await node.http.put("/demand/g", content=b"[]"),
            await node.http.put("/demand/g", json={"models": {"echo": {"waiting": "many"}}}),
        ):
            assert answer.status_code == 400
        assert (await node.http.post("/models/nope/restart")).status_code == 404


async def test_a_node_without_own_engines_tells_of_none(tmp_path: Path) -> None:
    async with running(settings(tmp_path, ATTACHED)) as node:
        told = await node.told()
        assert (told["hosts"], told["models"]) == ([], [])


# from nothing, and back to nothing


async def test_nothing_runs_until_somebody_waits_and_again_once_nobody_does(tmp_path: Path) -> None:
    async with running(settings(tmp_path, COLD)) as node:
        told = await node.told()
        assert (state_of(told), told["hosts"], host_children()) == ("cold", [], [])
        (host,) = await node.ready(echo=1)
        assert state_of(await node.told()) == "ready"
        await node.demand()
        await node.until(lambda told: state_of(told) == "cold")
        await node.until(lambda told: told["hosts"] == [])
        assert host_children() == []
        (again,) = await node.ready(echo=1)
        assert again["id"] != host["id"]


async def test_demand_that_nobody_renews_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that was killed needs nothing."""
    monkeypatch.setattr("runtime.node.demand.DEMAND_TTL_S", 0.5)
    async with running(settings(tmp_path, COLD)) as node:
        await node.demand(echo=1)
        await node.until(lambda told: state_of(told) == "cold" and not told["hosts"])


async def test_what_runs_keeps_a_host_even_if_no_gateway_tells(tmp_path: Path) -> None:
    """A host says itself how much it does."""
    async with running(settings(tmp_path, COLD)) as node:
        (host,) = await node.ready(echo=1)
        answer = asyncio.ensure_future(complete(node, host, 300))
        await in_flight(host)
        await node.until(lambda told: told["hosts"][0]["in_flight"] == 1, echo=1)
        await node.demand()
        assert (await answer)["usage"]["completion_tokens"] == 300
        (still,) = ready(await node.told())
        assert still["id"] == host["id"]
        await node.until(lambda told: not told["hosts"])


async def test_hosts_grow_with_what_waits_and_shrink_again(tmp_path: Path) -> None:
    given = model(max_hosts=3, max_in_flight=2, min_hosts=1, idle_timeout_s=0.3)
    async with running(settings(tmp_path, given)) as node:
        await node.ready(1)
        await node.ready(2, echo=3)
        await node.ready(3, echo=100)
        assert len((await node.told())["hosts"]) == 3, "and no more than its most"
        await node.demand()
        await node.until(lambda told: len(told["hosts"]) == 1)
        assert state_of(await node.told()) == "ready"


async def test_a_host_that_goes_is_told_of_and_waits_for_the_gateways_to_know(
    tmp_path: Path,
) -> None:
    """What a gateway sends before it has heard is answered, however late it hears."""
    async with running(settings(tmp_path, COLD)) as node:
        (host,) = await node.ready(echo=1)
        version = (await node.told())["version"]
        poll = asyncio.ensure_future(node.told(version, 20, gateway="g"))
        await node.demand()
        told = await poll
        assert told["hosts"][0]["state"] == "draining"
        assert told["hosts"][0]["reason"] == "idle"
        for _ in range(3):  # longer than a drain takes
            assert (await complete(node, host))["usage"]["completion_tokens"] == 2
            await asyncio.sleep(0.2)
        last = asyncio.ensure_future(node.told(told["version"], 20, gateway="g"))  # I know
        await node.until(lambda told: not told["hosts"])
        await last


# the end


async def test_a_stop_drains_and_says_so_while_it_does(tmp_path: Path) -> None:
    """Running answers end; whoever polls hears that no new one should be sent."""
    async with running(settings(tmp_path, WARM)) as node:
        (host,) = await node.ready()
        version = (await node.told())["version"]
        poll = asyncio.ensure_future(node.told(version, 20))
        answer = asyncio.ensure_future(complete(node, host, 50))
        await in_flight(host)
        node.stop.set()
        assert (await poll)["hosts"][0]["state"] == "draining"
        assert (await answer)["usage"]["completion_tokens"] == 50


async def test_a_stop_while_hosts_start_leaves_no_process(tmp_path: Path) -> None:
    given = model(min_hosts=2, max_hosts=2, options={"start_s": 600})
    async with running(settings(tmp_path, given)) as node:
        await node.until(lambda told: len(told["hosts"]) == 2)
    assert host_children() == []


async def test_a_host_that_starts_says_so_and_what_for(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with running(settings(tmp_path, WARM)) as node:
            (host,) = await node.ready()
    told = [line for line in logs if line["event"] in ("host_starting", "host_ready")]
    assert [line["event"] for line in told] == ["host_starting", "host_ready"]
    assert (told[0]["host"], told[0]["model"], told[0]["for"]) == (host["id"], "echo", "min_hosts")
