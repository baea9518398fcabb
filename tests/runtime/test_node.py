"""A real node with a real host: who asks on its socket hears of every change at once."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from runtime import keyring
from runtime.capability import Signer
from runtime.models import ModelSettings
from runtime.node import CAPABILITY_LABEL, Node
from runtime.probe import client
from runtime.sections import FileSettings, HostSettings, ServerSettings
from runtime.settings import Settings
from runtime.state import node_socket
from tests.runtime.servers import running_node

MODELS = (
    ModelSettings(id="echo", engine="fake", options={"step_s": 0.01}),
    ModelSettings(id="attached", engine="openai", url="http://127.0.0.1:1/v1"),
)
QUICK = HostSettings(
    start_s=20, health_every_s=0.1, health_timeout_s=0.3, backoff_first_s=0.05, backoff_max_s=0.2
)


@pytest.fixture(autouse=True)
def _short_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sockets of this test lie in its own folder, not beside those of a running Bulkhead."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def settings(folder: Path, models: tuple[ModelSettings, ...] = MODELS) -> Settings:
    file = FileSettings(models=models, hosts=QUICK, server=ServerSettings(drain_s=10))
    return Settings(file=file, config_path="", state_dir=folder / "state")


class Running:
    """A node that runs, and a client on its socket."""

    def __init__(self, given: Settings, http: httpx.AsyncClient, stop: asyncio.Event) -> None:
        self.settings, self.http, self.stop = given, http, stop

    async def hosts(self, after: int = 0, wait_s: float = 0) -> Any:
        answer = await self.http.get("/hosts", params={"after": after, "wait_s": wait_s})
        assert answer.status_code == 200
        return answer.json()

    async def ready(self, starts: int = 1) -> Any:
        """The one host, once its n-th start is ready; followed by long poll."""
        version = 0
        async with asyncio.timeout(20):
            while True:
                found = await self.hosts(version, 10)
                version = found["version"]
                (host,) = found["hosts"]
                if host["state"] == "ready" and host["starts"] == starts:
                    return found


@asynccontextmanager
async def running(given: Settings) -> AsyncIterator[Running]:
    async with (
        running_node(given) as stop,
        client(str(node_socket(given.state_dir)), 30) as http,
    ):
        yield Running(given, http, stop)


def test_a_node_that_starts_again_tells_no_version_of_before(tmp_path: Path) -> None:
    """Else who polls with the old version would take the new hosts for the old."""
    given = settings(tmp_path)
    assert Node(given).hosts().version < Node(given).hosts().version


def test_a_node_that_starts_again_names_its_hosts_anew(tmp_path: Path) -> None:
    """Who could not connect to a dead node's host avoids it by its id: not the new one, too."""
    given = settings(tmp_path)
    assert Node(given).hosts().hosts[0].id != Node(given).hosts().hosts[0].id


async def test_the_node_tells_of_its_own_hosts_on_private_sockets(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as node:
        found = await node.ready()
        (host,) = found["hosts"]
        assert (host["model"], host["starts"]) == ("echo", 1)
        for path in (host["socket"], node_socket(node.settings.state_dir)):
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(Path(host["socket"]).parent.stat().st_mode) == 0o700
    assert not Path(host["socket"]).parent.exists(), "a stopped node leaves nothing behind"


async def test_a_host_believes_the_gateway_that_shares_the_state_folder(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as node:
        (host,) = (await node.ready())["hosts"]
        signer = Signer(keyring.load(node.settings.state_dir).derive(CAPABILITY_LABEL))
        body = {"model": "echo", "prompt": "ab", "max_tokens": 2}
        async with client(host["socket"], 10) as http:
            for model, status in (("echo", 200), ("other", 401)):
                headers = {"authorization": f"Bearer {signer.mint('d', model)}"}
                answer = await http.post("/v1/completions", json=body, headers=headers)
                assert answer.status_code == status


async def test_a_long_poll_wakes_at_a_change(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as node:
        found = await node.ready()
        poll = asyncio.ensure_future(node.hosts(found["version"], 20))
        await asyncio.sleep(0.05)
        assert not poll.done()
        died = time.monotonic()
        os.kill(found["hosts"][0]["pid"], signal.SIGKILL)
        heard = await poll
        assert time.monotonic() - died < 0.5
        assert heard["version"] > found["version"]
        assert heard["hosts"][0]["state"] == "waiting"
        assert heard["hosts"][0]["reason"] == "exited with -9"
        assert (await node.ready(2))["hosts"][0]["id"] != found["hosts"][0]["id"]


async def test_a_long_poll_ends_when_its_time_is_up(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as node:
        found = await node.ready()
        began = time.monotonic()
        assert await node.hosts(found["version"], 0.1) == found
        assert 0.1 <= time.monotonic() - began < 2
        assert await node.hosts(found["version"] - 1, 20) == found, "another version: at once"


async def test_a_stop_drains_and_says_so_while_it_does(tmp_path: Path) -> None:
    """Running answers end; whoever polls hears that no new one should be sent."""
    async with running(settings(tmp_path)) as node:
        found = await node.ready()
        signer = Signer(keyring.load(node.settings.state_dir).derive(CAPABILITY_LABEL))
        headers = {"authorization": f"Bearer {signer.mint('d', 'echo')}"}
        body = {"model": "echo", "prompt": "ab", "max_tokens": 50}
        poll = asyncio.ensure_future(node.hosts(found["version"], 20))
        async with client(found["hosts"][0]["socket"], 10) as http:
            running_one = asyncio.ensure_future(
                http.post("/v1/completions", json=body, headers=headers)
            )
            async with asyncio.timeout(5):
                while (await http.get("/stats")).json()["running"] == 0:
                    await asyncio.sleep(0.005)
            node.stop.set()
            assert (await poll)["hosts"][0]["state"] == "draining"
            answer = await running_one
        assert answer.json()["usage"]["completion_tokens"] == 50


async def test_a_node_without_own_engines_tells_of_none(tmp_path: Path) -> None:
    async with running(settings(tmp_path, MODELS[1:])) as node:
        assert (await node.hosts())["hosts"] == []
