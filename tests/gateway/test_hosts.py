"""Where the engines are: the directory follows real nodes, whatever happens to their hosts."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs

from gateway.catalog.catalog import catalog_of
from gateway.errors import ModelFailed, Unavailable
from gateway.relay.attached import AttachedServers
from gateway.relay.hosts import HostDirectory
from gateway.relay.node_link import LocalNode
from gateway.relay.placement import Line, Place, Placement
from gateway.relay.relay import Errand, Relay
from gateway.relay.transport import Reply, Transport
from gateway.schema import decode_completion
from runtime import keyring
from runtime.capability import Signer
from runtime.config.models import ModelSettings
from runtime.config.sections import FileSettings, RelaySettings, ServerSettings
from runtime.node.node import CAPABILITY_LABEL
from runtime.node_wire import ModelState
from runtime.settings import Settings
from runtime.state import node_socket
from tests.runtime.hosts import QUICK, host_children
from tests.runtime.servers import node_on, running_node
from tests.runtime.upstream import Exchange, upstream

ECHO = ModelSettings(id="echo", engine="fake", options={"step_s": 0.01})
WARM = structs.replace(ECHO, min_hosts=1)


@pytest.fixture(autouse=True)
def _own_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def settings_of(folder: Path, *models: ModelSettings, **hosts: Any) -> Settings:
    given = structs.replace(QUICK, **hosts)
    file = FileSettings(models=models, hosts=given, server=ServerSettings(drain_s=10))
    return Settings(file=file, config_path="", state_dir=folder / "state")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_of(tmp_path, WARM)


class Following:
    """A directory that follows, and the lines that it keeps."""

    def __init__(self, *sockets: Path) -> None:
        self.placement = Placement()
        nodes = [LocalNode(str(socket), 1) for socket in sockets]
        self.directory = HostDirectory(nodes, self.placement)

    def line(self, model: str = "echo") -> Line:
        line = self.placement.line(model)
        line.max_in_flight = 100
        return line

    async def place(self, model: str = "echo", timeout_s: float = 30, avoid: str = "") -> Place:
        line = self.line(model)
        others = (avoid,) if avoid else ()
        return line.take(1, others) or await line.wait(1, 10, timeout_s, others)

    def pid(self) -> int:
        """Of the host of the first node that is told of."""
        hosts = self.directory._nodes[0].link.told.hosts
        return hosts[0].pid if hosts else 0


@asynccontextmanager
async def following(*sockets: Path) -> AsyncIterator[Following]:
    found = Following(*sockets)
    follow = asyncio.ensure_future(found.directory.follow())
    try:
        yield found
        assert not follow.done(), "it follows for as long as the gateway runs"
    finally:
        follow.cancel()
        with suppress(asyncio.CancelledError):
            await follow
        await found.directory.aclose()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def request(settings: Settings, place: Place, max_tokens: int) -> Any:
    """A streamed completion at a place, as the relay sends it."""
    signer = Signer(keyring.load(settings.state_dir).derive(CAPABILITY_LABEL))
    headers = {"authorization": f"Bearer {signer.mint('d', 'echo')}"}
    body = {"model": "echo", "prompt": "abc", "max_tokens": max_tokens, "stream": True}
    url = f"{place.base_url}/completions"
    return place.transport.send("POST", url, headers, json.dumps(body).encode())


async def rest(reply: Reply) -> bytes:
    return b"".join([chunk async for chunk in reply.chunks()])


def relay_of(found: Following, settings: Settings, **times: float) -> Relay:
    signer = Signer(keyring.load(settings.state_dir).derive(CAPABILITY_LABEL))
    return Relay(
        found.placement,
        AttachedServers(),
        signer,
        b"salt",
        RelaySettings(**{"start_s": 30, **times}),
    )


def errand_of(settings: Settings) -> Errand:
    ask = decode_completion(b'{"model":"echo","prompt":"abc","max_tokens":4}')
    deployment = catalog_of(settings.file.models, {}).deployment("echo", 0)
    return Errand(ask, deployment, "d", "req_1")


async def answered(relay: Relay, errand: Errand) -> str:
    text: str = json.loads((await relay.whole(errand)).body)["choices"][0]["text"]
    return text


async def test_a_place_is_waited_for_until_its_host_is_ready(settings: Settings) -> None:
    async with following(node_socket(settings.state_dir)) as found:
        waiting = asyncio.ensure_future(found.place())
        await asyncio.sleep(0.02)
        assert not found.directory.ready("echo")
        assert not found.directory.is_heard()
        async with running_node(settings):
            place = await waiting
            assert found.directory.ready("echo")
            assert found.directory.is_heard()
            async with request(settings, place, 5) as reply:
                assert (await rest(reply)).endswith(b"data: [DONE]\n\n")
        await until(lambda: not found.directory.is_heard())


async def test_a_request_starts_a_host_and_the_last_one_s_end_stops_it(tmp_path: Path) -> None:
    """From nothing to an answer and back to nothing; and again."""
    given = settings_of(tmp_path, structs.replace(ECHO, idle_timeout_s=0.1))
    async with following(node_socket(given.state_dir)) as found, running_node(given):
        for _ in range(2):
            assert host_children() == []
            assert await answered(relay_of(found, given), errand_of(given)) == "abca"
            await until(lambda: host_children() == [])


async def test_a_place_stays_the_same_while_its_host_lives(settings: Settings) -> None:
    async with following(node_socket(settings.state_dir)) as found, running_node(settings):
        first = await found.place()
        assert await found.place() is first


async def test_a_killed_host_s_place_is_given_up_for_the_next_one_s(settings: Settings) -> None:
    async with following(node_socket(settings.state_dir)) as found, running_node(settings):
        first = await found.place()
        os.kill(found.pid(), signal.SIGKILL)
        second = await found.place(avoid=first.host_id)
        assert first.host_id != second.host_id
        assert second.transport is not first.transport
        async with request(settings, second, 5) as reply:
            assert (await rest(reply)).endswith(b"data: [DONE]\n\n")


async def test_a_request_that_finds_nobody_listening_goes_to_the_next_host(
    settings: Settings,
) -> None:
    """The host died a moment ago, and the directory hasn't heard: nothing was sent, so it may."""
    async with following(node_socket(settings.state_dir)) as found, running_node(settings):
        dead = await found.place()
        Path(found.directory._nodes[0].link.told.hosts[0].socket).unlink()
        os.kill(found.pid(), signal.SIGKILL)
        errand = errand_of(settings)
        assert await answered(relay_of(found, settings), errand) == "abca"
        assert errand.host_id != dead.host_id


async def test_no_place_in_time_is_unavailable_and_says_why(tmp_path: Path) -> None:
    slow = ModelSettings(id="slow", engine="fake", options={"start_s": 600})
    given = settings_of(tmp_path, WARM, slow)
    async with following(node_socket(given.state_dir)) as found, running_node(given):
        await found.place()
        for model, why in (("other", "unknown to the node"), ("slow", "starting|cold")):
            with pytest.raises(Unavailable, match=f"after 0.3 s .*({why})"):
                await found.place(model, 0.3)
        host_id = (await found.place()).host_id
        with pytest.raises(Unavailable):
            await found.place(timeout_s=0.05, avoid=host_id)


class Late(LocalNode):
    """A node of which a gateway always hears half a second late."""

    def open(self) -> Transport:
        transport = super().open()
        hear = transport.handle_async_request

        async def late(request: httpx.Request) -> httpx.Response:
            answer = await hear(request)
            await asyncio.sleep(0.5)
            return answer

        transport.handle_async_request = late  # type: ignore[method-assign]
        return transport


async def test_a_gateway_that_hears_late_loses_nothing(settings: Settings) -> None:
    """It goes on sending to hosts that others know to drain."""
    found = Following()
    found.directory = HostDirectory(
        [Late(str(node_socket(settings.state_dir)), 1)], found.placement
    )
    follow = asyncio.ensure_future(found.directory.follow())
    hosts: set[str | None] = set()

    async def client(relay: Relay) -> None:
        while len(hosts) < 4:
            errand = errand_of(settings)
            errand.request_id = f"req_{next(numbers)}"
            assert await answered(relay, errand) == "abca"
            hosts.add(errand.host_id)

    async with node_on(settings) as (node, _), asyncio.timeout(60):
        relay, numbers = relay_of(found, settings), itertools.count()
        clients = [asyncio.ensure_future(client(relay)) for _ in range(8)]
        while not all(task.done() for task in clients):
            node.restart("echo")
            await asyncio.wait(clients, timeout=1.5)
        await asyncio.gather(*clients)
        follow.cancel()
        await found.directory.aclose()


async def test_a_model_that_fails_to_start_refuses_its_requests_at_once(tmp_path: Path) -> None:
    """Those that wait already too; and without the reason, which is for the operator."""
    broken = structs.replace(ECHO, options={"bogus": 1})
    given = settings_of(tmp_path, broken, max_failures=2, retry_failed_s=3600)
    async with following(node_socket(given.state_dir)) as found, running_node(given):
        relay = relay_of(found, given, start_s=60)
        for _ in range(2):
            with pytest.raises(ModelFailed) as told:
                await asyncio.wait_for(relay.whole(errand_of(given)), 30)
            assert "bogus" not in told.value.message


async def test_no_node_at_all_is_unavailable(settings: Settings) -> None:
    async with following(node_socket(settings.state_dir)) as found:
        with pytest.raises(Unavailable, match="unknown to the node"):
            await found.place(timeout_s=0.05)


async def test_a_draining_host_gets_no_more_and_what_runs_there_ends(settings: Settings) -> None:
    async with (
        following(node_socket(settings.state_dir)) as found,
        running_node(settings) as stop,
    ):
        place = await found.place()
        async with request(settings, place, 100) as reply:
            chunks = reply.chunks()
            await anext(chunks)
            stop.set()
            await until(lambda: not found.directory.ready("echo"))
            with pytest.raises(Unavailable):
                await found.place(timeout_s=0.05)
            data = b"".join([chunk async for chunk in chunks])
        assert data.endswith(b"data: [DONE]\n\n")
        assert b": t=100\n" in data


async def test_a_killed_node_s_successor_is_found(settings: Settings, tmp_path: Path) -> None:
    """The first one is a process of its own, and dies without a word."""
    config = tmp_path / "bulkhead.toml"
    config.write_text('admin.port = 0\n[[models]]\nid = "echo"\nengine = "fake"\nmin_hosts = 1\n')
    env = dict(os.environ) | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "gateway", "node", "--config", str(config)]
    node = subprocess.Popen([*command, "--state", str(settings.state_dir)], env=env)
    try:
        async with following(node_socket(settings.state_dir)) as found:
            await found.place()
            dead = found.pid()
            node.kill()
            node.wait()
            async with running_node(settings):
                await until(lambda: found.pid() not in (0, dead))
                place = await found.place()
                async with request(settings, place, 5) as reply:
                    assert reply.status == 200
    finally:
        node.kill()
        node.wait()


# nodes that are scripted


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
        assert line.take(1)
        waiting = asyncio.ensure_future(line.wait(1, 10, 60))
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
        assert line.take(1)
        assert line.take(1)
        waiting = asyncio.ensure_future(line.wait(1, 10, 60))
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
