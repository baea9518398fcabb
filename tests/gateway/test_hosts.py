"""Where the engines are: the directory follows a real node, whatever happens to its hosts."""

from __future__ import annotations

import asyncio
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

import pytest
from msgspec import structs

from gateway.attached import AttachedServers
from gateway.catalog import catalog_of
from gateway.errors import Unavailable
from gateway.hosts import HostDirectory, Place
from gateway.relay import Errand, Relay
from gateway.schema import decode_completion
from gateway.transport import Reply
from runtime import keyring
from runtime.capability import Signer
from runtime.models import ModelSettings
from runtime.node import CAPABILITY_LABEL
from runtime.sections import FileSettings, HostSettings, RelaySettings, ServerSettings
from runtime.settings import Settings
from runtime.state import node_socket
from tests.runtime.servers import running_node
from tests.runtime.upstream import Exchange, upstream

QUICK = HostSettings(health_every_s=1, backoff_first_s=0.05, backoff_max_s=0.2)
HOSTS = {
    "version": 7,
    "hosts": [{"id": "host-0-9", "model": "echo", "state": "ready", "socket": "/nowhere.sock"}],
}


@pytest.fixture(autouse=True)
def _own_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    models = (ModelSettings(id="echo", engine="fake", options={"step_s": 0.01}),)
    file = FileSettings(models=models, hosts=QUICK, server=ServerSettings(drain_s=10))
    return Settings(file=file, config_path="", state_dir=tmp_path / "state")


@asynccontextmanager
async def following(state_dir: Path) -> AsyncIterator[HostDirectory]:
    directory = HostDirectory(str(node_socket(state_dir)), 1)
    follow = asyncio.ensure_future(directory.follow())
    try:
        yield directory
        assert not follow.done(), "it follows for as long as the gateway runs"
    finally:
        follow.cancel()
        with suppress(asyncio.CancelledError):
            await follow
        await directory.aclose()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
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


async def test_a_place_is_waited_for_until_its_host_is_ready(settings: Settings) -> None:
    async with following(settings.state_dir) as directory:
        waiting = asyncio.ensure_future(directory.place("echo", 20))
        await asyncio.sleep(0.02)
        assert not directory.ready("echo")
        async with running_node(settings):
            place = await waiting
            assert directory.ready("echo")
            assert place.host_id == directory._views["echo"].id
            async with request(settings, place, 5) as reply:
                assert (await rest(reply)).endswith(b"data: [DONE]\n\n")


async def test_a_place_stays_the_same_while_its_host_lives(settings: Settings) -> None:
    async with following(settings.state_dir) as directory, running_node(settings):
        first = await directory.place("echo", 20)
        assert await directory.place("echo", 20) is first


async def test_a_killed_host_s_place_is_given_up_for_the_next_one_s(settings: Settings) -> None:
    async with following(settings.state_dir) as directory, running_node(settings):
        first = await directory.place("echo", 20)
        os.kill(directory._views["echo"].pid, signal.SIGKILL)
        second = await directory.place("echo", 20, avoid=first.host_id)
        assert first.host_id != second.host_id
        assert second.transport is not first.transport
        async with request(settings, second, 5) as reply:
            assert (await rest(reply)).endswith(b"data: [DONE]\n\n")


async def test_a_request_that_finds_nobody_listening_goes_to_the_next_host(
    settings: Settings,
) -> None:
    """The host died a moment ago, and the directory hasn't heard: nothing was sent, so it may."""
    async with following(settings.state_dir) as directory, running_node(settings):
        dead = await directory.place("echo", 20)
        Path(directory._views["echo"].socket).unlink()
        os.kill(directory._views["echo"].pid, signal.SIGKILL)
        signer = Signer(keyring.load(settings.state_dir).derive(CAPABILITY_LABEL))
        relay = Relay(directory, AttachedServers(), signer, b"salt", RelaySettings(start_s=20))
        ask = decode_completion(b'{"model":"echo","prompt":"abc","max_tokens":4}')
        deployment = catalog_of(settings.file.models, {}).deployment("echo")
        errand = Errand(ask, deployment, "d", "req_1")
        assert json.loads((await relay.whole(errand)).body)["choices"][0]["text"] == "abca"
        assert errand.host_id != dead.host_id


async def test_no_place_in_time_is_unavailable_and_says_why(settings: Settings) -> None:
    broken = ModelSettings(id="broken", engine="fake", options={"bogus": 1})
    file = structs.replace(settings.file, models=(*settings.file.models, broken))
    given = structs.replace(settings, file=file)
    async with following(given.state_dir) as directory, running_node(given):
        await directory.place("echo", 20)
        for model, why in (("other", "unknown to the node"), ("broken", "starting|waiting")):
            with pytest.raises(Unavailable, match=f"after 0.05 s .*({why})"):
                await directory.place(model, 0.05)
        host_id = (await directory.place("echo", 20)).host_id
        with pytest.raises(Unavailable):
            await directory.place("echo", 0.05, avoid=host_id)


async def test_no_node_at_all_is_unavailable(settings: Settings) -> None:
    async with following(settings.state_dir) as directory:
        with pytest.raises(Unavailable, match="unknown to the node"):
            await directory.place("echo", 0.05)


async def test_a_draining_host_gets_no_more_and_what_runs_there_ends(settings: Settings) -> None:
    async with following(settings.state_dir) as directory, running_node(settings) as stop:
        place = await directory.place("echo", 20)
        async with request(settings, place, 100) as reply:
            chunks = reply.chunks()
            await anext(chunks)
            stop.set()
            await until(lambda: not directory.ready("echo"))
            with pytest.raises(Unavailable, match="draining"):
                await directory.place("echo", 0.05)
            data = b"".join([chunk async for chunk in chunks])
        assert data.endswith(b"data: [DONE]\n\n")
        assert b": t=100\n" in data


async def test_a_killed_node_s_successor_is_found(settings: Settings, tmp_path: Path) -> None:
    """The first one is a process of its own, and dies without a word."""
    config = tmp_path / "bulkhead.toml"
    config.write_text('[[models]]\nid = "echo"\nengine = "fake"\n')
    env = dict(os.environ) | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "gateway", "node", "--config", str(config)]
    node = subprocess.Popen([*command, "--state", str(settings.state_dir)], env=env)
    try:
        async with following(settings.state_dir) as directory:
            await directory.place("echo", 20)
            dead = directory._views["echo"].pid
            node.kill()
            node.wait()
            async with running_node(settings):
                await until(lambda: directory._views["echo"].pid not in (0, dead))
                place = await directory.place("echo", 20)
                async with request(settings, place, 5) as reply:
                    assert reply.status == 200
    finally:
        node.kill()
        node.wait()


async def nonsense(exchange: Exchange) -> None:
    await exchange.reply(500, b"Internal Server Error", "text/plain")


async def cut(exchange: Exchange) -> None:
    await exchange.send(b'HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{"version": 1')
    exchange.close()


async def nothing(exchange: Exchange) -> None:
    exchange.close()


@pytest.mark.parametrize("answer", [nonsense, cut, nothing])
async def test_a_node_that_fails_to_answer_is_asked_again(
    settings: Settings, answer: Callable[[Exchange], Any]
) -> None:
    """A gateway that no longer follows its node would serve from a list that grows old."""
    asked = 0

    async def flaky(exchange: Exchange) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            await answer(exchange)
        elif asked == 2:
            await exchange.reply_json(200, HOSTS)
        else:
            await exchange.gone()

    path = str(node_socket(settings.state_dir))
    async with following(settings.state_dir) as directory, upstream(flaky, path=path):
        assert (await directory.place("echo", 5)).host_id == "host-0-9"
