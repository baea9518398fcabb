"""What passes between a gateway and its nodes, which are scripted: also those that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ModelFailed
from gateway.relay.hosts import HostDirectory
from gateway.relay.node_link import LocalNode
from gateway.relay.placement import Line
from runtime.node_wire import ModelState
from tests.gateway.following import (
    following,
    until,
)
from tests.runtime.upstream import Exchange, upstream


@pytest.fixture(autouse=True)
def _own_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def told(version: int, *hosts: str, **model: Any) -> dict[str, Any]:
    """What a node tells of one model, `echo`, and its ready hosts."""
    views = [{"id": h, "model": "echo", "state": "ready", "socket": f"/no/{h}"} for h in hosts]
    state = "ready" if hosts else "cold"
    models = [{"id": "echo", "state": state, "hosts": len(hosts), "max_hosts": 1} | model]
    return {"version": version, "hosts": views, "models": models}


class Scripted:
    """A node that tells what it is given, and keeps what it is told."""

    def __init__(self, first: dict[str, Any]) -> None:
        self.demands: list[dict[str, Any]] = []
        self.acknowledged: list[int] = []
        self._told = first
        self._changed = asyncio.Event()

    def tell(self, told: dict[str, Any]) -> None:
        self._told = told
        self._changed.set()

    async def answer(self, exchange: Exchange) -> None:
        if exchange.method == "PUT":
            self.demands.append(exchange.json()["models"])
            await exchange.reply(204, b"")
            return
        after = int(exchange.path.partition("after=")[2].partition("&")[0])
        self.acknowledged.append(after)
        if after == self._told["version"]:
            self._changed.clear()
            await self._changed.wait()
        await exchange.reply_json(200, self._told)


async def test_a_gateway_says_what_it_has_taken_in_and_only_then(tmp_path: Path) -> None:
    """By then it sends nothing more to a host that drains."""
    node = Scripted(told(7, "h1"))
    path = tmp_path / "n.sock"
    async with upstream(node.answer, path=str(path)) as server, following(path) as found:
        await found.place()
        node.tell(told(8))
        await until(lambda: 8 in node.acknowledged)
        assert found.line().places == []
        assert node.acknowledged == [0, 7, 8]
        assert (
            len({ask.path.partition("gateway=")[2] for ask in server.asked if ask.method == "GET"})
            == 1
        )


async def test_who_begins_to_wait_is_told_at_once_and_nobody_is_told_of_when_there_is_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.relay.node_link.DEMAND_EVERY_S", 3600)
    node = Scripted(told(7))
    path = tmp_path / "n.sock"
    async with upstream(node.answer, path=str(path)), following(path) as found:
        await until(lambda: node.acknowledged[-1:] == [7])
        waiting = asyncio.ensure_future(found.place())
        await until(lambda: bool(node.demands))
        assert node.demands == [{"echo": {"waiting": 1, "tokens": 1, "in_flight": 0}}]
        waiting.cancel()
        await asyncio.wait((waiting,))


async def test_demand_is_told_until_there_is_none_and_that_once(tmp_path: Path) -> None:
    node = Scripted(told(7, "h1"))
    path = tmp_path / "n.sock"
    async with upstream(node.answer, path=str(path)), following(path) as found:
        place = await found.place()
        await until(lambda: len(node.demands) >= 2)
        assert node.demands[-1]["echo"]["in_flight"] == 1
        found.line().leave(place, 1)
        await until(lambda: node.demands[-1] == {})
        count = len(node.demands)
        await asyncio.sleep(1.2)
        assert len(node.demands) == count, "silence is no demand"


async def test_of_several_nodes_the_one_that_can_starts_a_host(tmp_path: Path) -> None:
    """Each is told of what runs on its own hosts."""
    full, able = Scripted(told(7, "h1")), Scripted(told(7))
    paths = tmp_path / "a.sock", tmp_path / "b.sock"
    async with (
        upstream(full.answer, path=str(paths[0])),
        upstream(able.answer, path=str(paths[1])),
        following(*paths) as found,
    ):
        line = found.line()
        line.max_in_flight = 1
        await until(lambda: bool(line.places) and 7 in able.acknowledged)
        assert line.take(line.turn(1))
        waiting = asyncio.ensure_future(line.wait(line.turn(1), 10, 60))
        await until(lambda: any("echo" in demand for demand in able.demands))
        assert able.demands[-1]["echo"] == {"waiting": 1, "in_flight": 0, "tokens": 1}
        await until(lambda: any("echo" in demand for demand in full.demands))
        assert all(d["echo"]["waiting"] == 0 for d in full.demands if "echo" in d)
        able.tell(told(8, "h2"))
        assert (await waiting).host_id == "h2"


async def test_other_nodes_are_followed_from_now_on(tmp_path: Path) -> None:
    """Who waits is served by them; what is known of a node that stays is kept."""
    stays, goes, comes = Scripted(told(7, "h1")), Scripted(told(7, "h2")), Scripted(told(7, "h3"))
    paths = [tmp_path / f"{name}.sock" for name in "abc"]
    nodes = [LocalNode(str(path), 5) for path in paths]
    async with (
        upstream(stays.answer, path=str(paths[0])),
        upstream(goes.answer, path=str(paths[1])),
        upstream(comes.answer, path=str(paths[2])),
        following(*paths[:2]) as found,
    ):
        line = found.line()
        await until(lambda: {place.host_id for place in line.places} == {"h1", "h2"})
        first = next(place for place in line.places if place.host_id == "h1")
        line.max_in_flight = 1
        assert line.take(line.turn(1))
        assert line.take(line.turn(1))
        waiting = asyncio.ensure_future(line.wait(line.turn(1), 10, 60))
        await until(lambda: line.num_waiting == 1)
        found.directory.keep([nodes[0], nodes[2]])
        assert line.places == [first]
        assert (await waiting).host_id == "h3"
        assert {place.host_id for place in line.places} == {"h1", "h3"}
        goes.tell(told(8, "h4"))
        await asyncio.sleep(0.1)
        assert 8 not in goes.acknowledged, "nobody asks it any more"
        found.directory.keep([])
        assert line.places == []
        assert not found.directory.is_heard()


async def test_a_model_has_failed_when_all_its_nodes_say_so(tmp_path: Path) -> None:
    one, other = Scripted(told(7, state="failed")), Scripted(told(7))
    paths = tmp_path / "a.sock", tmp_path / "b.sock"
    async with (
        upstream(one.answer, path=str(paths[0])),
        upstream(other.answer, path=str(paths[1])),
        following(*paths) as found,
    ):
        await until(lambda: 7 in one.acknowledged and 7 in other.acknowledged)
        waiting = asyncio.ensure_future(found.place())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        other.tell(told(8, state="failed"))
        with pytest.raises(ModelFailed):
            await waiting
        one.tell(told(8, "h1"))
        await until(lambda: found.directory.ready("echo"))
        assert (await found.place()).host_id == "h1"


async def test_a_model_s_state_is_its_best_node_s(tmp_path: Path) -> None:
    one, other = Scripted(told(7, state="failed")), Scripted(told(7))
    paths = tmp_path / "a.sock", tmp_path / "b.sock"
    async with (
        upstream(one.answer, path=str(paths[0])),
        upstream(other.answer, path=str(paths[1])),
        following(*paths) as found,
    ):
        await until(lambda: 7 in one.acknowledged and 7 in other.acknowledged)
        assert found.directory.state("echo") is ModelState.COLD
        assert found.directory.state("unheard of") is ModelState.COLD
        other.tell(told(8, state="starting"))
        await until(lambda: found.directory.state("echo") is ModelState.STARTING)
        other.tell(told(9, state="failed"))
        await until(lambda: found.directory.state("echo") is ModelState.FAILED)
        one.tell(told(8, "h1"))
        await until(lambda: found.directory.state("echo") is ModelState.READY)


async def test_a_bug_of_ours_doesn_t_end_the_following(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Scripted(told(7, "h1"))
    path = tmp_path / "n.sock"
    update, broken = HostDirectory._update_line, [True]

    def fails_once(self: HostDirectory, line: Line) -> None:
        if broken and broken.pop():
            raise ZeroDivisionError
        update(self, line)

    monkeypatch.setattr(HostDirectory, "_update_line", fails_once)
    async with upstream(node.answer, path=str(path)), following(path) as found:
        await until(lambda: not broken)
        node.tell(told(8, "h1"))
        assert (await found.place()).host_id == "h1"


async def nonsense(exchange: Exchange) -> None:
    await exchange.reply(500, b"Internal Server Error", "text/plain")


async def cut(exchange: Exchange) -> None:
    await exchange.send(b'HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{"version": 1')
    exchange.close()


async def nothing(exchange: Exchange) -> None:
    exchange.close()


@pytest.mark.parametrize("answer", [nonsense, cut, nothing])
async def test_a_node_that_fails_to_answer_is_asked_again(
    tmp_path: Path, answer: Callable[[Exchange], Any]
) -> None:
    """A gateway that no longer follows its node would serve from a list that grows old."""
    node = Scripted(told(7, "host-0-9"))
    failed = 0

    async def flaky(exchange: Exchange) -> None:
        nonlocal failed
        if not failed:
            failed += 1
            await answer(exchange)
        else:
            await node.answer(exchange)

    path = tmp_path / "n.sock"
    async with upstream(flaky, path=str(path)), following(path) as found:
        assert (await found.place()).host_id == "host-0-9"
        assert failed == 1
