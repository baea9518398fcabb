"""A relay to guarded servers, and launchers that tell of their guards, scripted byte by byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from engines.trtllm.salts import digest
from engines.trtllm.settings import TrtSettings
from gateway.catalog.catalog import Deployment, catalog_of
from gateway.relay.attached import AttachedServers
from gateway.relay.errand import Errand
from gateway.relay.guards import Guards
from gateway.relay.place import Place
from gateway.relay.placement import Placement
from gateway.relay.relay import Relay
from gateway.relay.sse import Frame
from runtime.capability import Signer
from runtime.config.attached import AttachedServer
from runtime.config.models import ModelSettings
from runtime.config.sections import RelaySettings
from tests.gateway.relaying import ANSWER, CHUNK, DONE, SETTINGS, USAGE, collect, errand, text
from tests.runtime.upstream import Exchange, Upstream, upstream

KEY = b"salt key"
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
)
WAIT_S = 20


def counters(steps: int = 0, *, boot: str = "b0", poisoned: bool = False) -> bytes:
    told = {"boot": boot, "steps": steps, "checked": 0, "violations": 0, "poisoned": poisoned}
    return json.dumps(told).encode() + b"\n"


def violation(salt: str | None, seq: int = 1) -> bytes:
    told = {"seq": seq, "kind": "foreign", "salt": digest(salt) if salt else None, "salt_id": None}
    return json.dumps({"violation": told}).encode() + b"\n"


class Launcher:
    """Tells each follower its counters ten times a second, and `say`s what comes between."""

    def __init__(self) -> None:
        self.boot = "b0"
        self.steps = 0
        self.poisoned = False
        self.status = 200
        self.cut = 0  # bytes of a chunk; 0: whole lines
        self.followers: list[Exchange] = []
        self.asked: list[Exchange] = []

    async def __call__(self, exchange: Exchange) -> None:
        self.asked.append(exchange)
        if self.status != 200:
            await exchange.reply(self.status, b"no\n", "text/plain")
            return
        await exchange.send(HEAD)
        self.followers.append(exchange)
        try:
            while exchange in self.followers:
                self.steps += 1
                await self._line(exchange, self.counters())
                await asyncio.sleep(0.1)
        finally:
            with suppress(ValueError):
                self.followers.remove(exchange)

    def counters(self) -> bytes:
        return counters(self.steps, boot=self.boot, poisoned=self.poisoned)

    async def say(self, line: bytes) -> None:
        for exchange in list(self.followers):
            await self._line(exchange, line)

    async def _line(self, exchange: Exchange, line: bytes) -> None:
        size = self.cut or len(line)
        for at in range(0, len(line), size):
            await exchange.event(line[at : at + size])

    async def end(self) -> None:
        for exchange in list(self.followers):
            self.followers.remove(exchange)
            await exchange.send(b"0\r\n\r\n")

    def break_off(self) -> None:
        for exchange in list(self.followers):
            exchange.reset()
            self.followers.remove(exchange)


class Model:
    """Streams a token, and then whatever the tests let go on, by the salt that it was sent."""

    def __init__(self) -> None:
        self.salts: list[str] = []
        self.begins = True  # at once
        self.may_end: dict[str, asyncio.Event] = {}

    def ending(self, salt: str) -> asyncio.Event:
        return self.may_end.setdefault(salt, asyncio.Event())

    async def __call__(self, exchange: Exchange) -> None:
        asked = exchange.json()
        salt = asked["cache_salt"]
        self.salts.append(salt)
        if not self.begins:
            await self.ending(salt).wait()
        if not asked.get("stream"):
            await exchange.reply_json(200, ANSWER)
            return
        await exchange.events(text("h"), end=False)
        await self.ending(salt).wait()
        for event in (text("o", "stop"), CHUNK | {"choices": [], "usage": USAGE}, DONE):
            await exchange.event(event)
        await exchange.send(b"0\r\n\r\n")


class World:
    """A relay to guarded servers; `models[i]` answers where `launchers[i]` tells."""

    def __init__(self, relay: Relay, attached: AttachedServers, placement: Placement) -> None:
        self.relay = relay
        self.attached = attached
        self.placement = placement
        self.models: list[Model] = []
        self.launchers: list[Launcher] = []
        self.places: list[Place] = []
        self.of: Deployment
        self.following: asyncio.Task[None]

    @property
    def model(self) -> Model:
        return self.models[0]

    @property
    def launcher(self) -> Launcher:
        return self.launchers[0]

    @property
    def fault(self) -> str:
        guard = self.places[0].guard
        return guard.fault if guard else "none is heard"

    def errand(self, domain: str = "one", **changes: Any) -> Errand:
        given = errand(domain=domain, of=self.of, **changes)
        given.request_id = f"req_{domain}"
        return given

    async def trusted(self) -> None:
        await until(lambda: not any(place.guard and place.guard.fault for place in self.places))

    def streaming(self, domain: str) -> tuple[asyncio.Task[list[Frame]], list[Frame]]:
        seen: list[Frame] = []
        asked = self.errand(domain, stream=True)
        return asyncio.ensure_future(collect(self.relay, asked, seen)), seen


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not is_so():
            await asyncio.sleep(0.01)


def deployment(pairs: list[tuple[Upstream, str]], **trt: Any) -> Deployment:
    servers = tuple(
        AttachedServer(url=f"{server.url}/v1", guard_url=guard) for server, guard in pairs
    )
    model = ModelSettings(
        id="ours",
        engine="tensorrt-llm",
        servers=servers,
        trt=TrtSettings(guard_secret="KEY", **trt),
    )
    return catalog_of([model], {"KEY": "sk-guard"}).deployment("ours", 0)


@asynccontextmanager
async def world(
    servers: int = 1, launcher: Any = None, settings: RelaySettings = SETTINGS
) -> AsyncIterator[World]:
    attached, placement = AttachedServers(), Placement()
    relay = Relay(placement, attached, Signer(bytes(32)), KEY, settings)
    found = World(relay, attached, placement)
    async with AsyncExitStack() as stack:
        pairs = []
        for _ in range(servers):
            found.models.append(Model())
            found.launchers.append(Launcher())
            model = await stack.enter_async_context(upstream(found.models[-1]))
            told = await stack.enter_async_context(upstream(launcher or found.launchers[-1]))
            pairs.append((model, f"{told.url}/guard/"))
        found.of = deployment(pairs)
        found.places = attached.places(found.of, SETTINGS.connect_s)
        found.following = asyncio.ensure_future(Guards(attached, placement, tick_s=0.01).follow())
        try:
            yield found
        finally:
            found.following.cancel()
            await asyncio.wait([found.following])
            await attached.aclose()
