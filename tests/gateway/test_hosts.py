"""Where the engines are: the directory follows real nodes, whatever happens to their hosts."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest
from msgspec import structs

from gateway.errors import ModelFailed, Unavailable
from gateway.relay.hosts import HostDirectory
from gateway.relay.node_link import LocalNode
from gateway.relay.place import Place
from gateway.relay.relay import Relay
from gateway.relay.transport import Transport
from runtime.config.models import ModelSettings
from runtime.rundir import node_socket
from runtime.settings import Settings
from tests.gateway.following import (
    ECHO,
    WARM,
    Following,
    answered,
    errand_of,
    following,
    relay_of,
    request,
    rest,
    settings_of,
    until,
)
from tests.runtime.hosts import host_children
from tests.runtime.servers import node_on, running_node
from tests.runtime.upstream import Exchange, upstream


@pytest.fixture(autouse=True)
def _own_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_of(tmp_path, WARM)


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


async def test_requests_that_find_nobody_listening_keep_their_order(settings: Settings) -> None:
    found, prompts = Following(), "abcdefgh"
    relay = relay_of(found, settings, start_s=60)
    line = found.line()
    dead = Place("dead", "http://host/v1", Transport("/nowhere.sock", connect_s=1))

    async def ask(prompt: str) -> str:
        errand = errand_of(settings)
        errand.ask.prompt = prompt
        errand.deployment = replace(errand.deployment, max_waiting=8, max_in_flight=8)
        await relay.whole(errand)
        return errand.host_id or ""

    async def answer(exchange: Exchange) -> None:
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        choices = [{"index": 0, "text": "x", "finish_reason": "stop"}]
        await exchange.reply_json(200, {"choices": choices, "usage": usage})

    asking = [asyncio.ensure_future(ask(prompt)) for prompt in prompts]
    await until(lambda: line.num_waiting == len(prompts))
    line.set_places([dead])
    assert line.num_waiting == 0
    await until(lambda: line.num_waiting == len(prompts))
    line.max_in_flight = 1
    async with upstream(answer) as server:
        live = Place("live", f"{server.url}/v1", Transport(connect_s=1))
        line.set_places([dead, live])
        assert set(await asyncio.gather(*asking)) == {"live"}
        assert "".join(exchange.json()["prompt"] for exchange in server.asked) == prompts
        await live.transport.aclose()
    await dead.transport.aclose()


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

    def is_known(count: int) -> bool:
        return len(hosts) >= count or clients.done()

    async with node_on(settings) as (node, _), asyncio.timeout(150):
        relay, numbers = relay_of(found, settings), itertools.count()
        clients = asyncio.gather(*(client(relay) for _ in range(8)))
        for known in range(1, 4):  # no sooner than the last one's hosts have begun to answer
            await until(partial(is_known, known))
            node.restart("echo")
        await clients
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
            await reply.chunk()
            stop.set()
            await until(lambda: not found.directory.ready("echo"))
            with pytest.raises(Unavailable):
                await found.place(timeout_s=0.05)
            data = await rest(reply)
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
