"""What the tests of the directory share: one that follows nodes, and requests that it places."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import structs

from gateway.catalog.catalog import catalog_of
from gateway.relay.attached import AttachedServers
from gateway.relay.errand import Errand
from gateway.relay.hosts import HostDirectory
from gateway.relay.node_link import LocalNode
from gateway.relay.place import Place
from gateway.relay.placement import Line, Placement
from gateway.relay.relay import Relay
from gateway.relay.transport import Reply
from gateway.schema import decode_completion
from runtime import keyring
from runtime.capability import CAPABILITY_LABEL, Signer
from runtime.config.models import ModelSettings
from runtime.config.sections import FileSettings, RelaySettings, ServerSettings
from runtime.settings import Settings
from tests.runtime.hosts import QUICK

ECHO = ModelSettings(id="echo", engine="fake", options={"step_s": 0.01})
WARM = structs.replace(ECHO, min_hosts=1)


def settings_of(folder: Path, *models: ModelSettings, **hosts: Any) -> Settings:
    given = structs.replace(QUICK, **hosts)
    file = FileSettings(models=models, hosts=given, server=ServerSettings(drain_s=10))
    return Settings(file=file, config_path="", state_dir=folder / "state")


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
        turn = line.turn(1)
        while True:
            place = line.take(turn) or await line.wait(turn, 10, timeout_s)
            if place.host_id != avoid:
                return place
            line.lose(place)
            line.leave(place, 1)

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
    """All that is still to come of a body."""
    return await reply.read(10**9)


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
