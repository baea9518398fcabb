"""Servers for the tests: uvicorn on real sockets, in this loop; and engines that wait to be let."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import uvicorn
from starlette.types import ASGIApp

from engines.api import Engine, Output
from engines.fake import FakeEngine
from runtime.capability import Signer, Verifier
from runtime.host.app import Host
from runtime.host.engine_thread import EngineThread
from runtime.host.process import HostServer, listen
from runtime.node.node import Node
from runtime.node.probe import client
from runtime.rundir import node_socket
from runtime.settings import Settings

SEED = bytes(range(32))


class GatedEngine(FakeEngine):
    """The fake engine, one step for each time it is allowed to."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._steps = threading.Semaphore(0)
        self._is_open = False
        self.allowed = 0
        self.waiting = False

    def allow(self, steps: int) -> None:
        """Let it take so many more steps."""
        if steps:
            self.allowed += steps
            self._steps.release(steps)

    def open(self) -> None:
        """Let it run freely."""
        self._is_open = True
        self._steps.release()

    def step(self) -> list[Output]:
        """See engines.api.Engine."""
        if not self._is_open:
            self.waiting = True
            assert self._steps.acquire(timeout=10), "nobody let the engine go on"
            self.waiting = False
            self.allowed -= 1
        return super().step()


def as_engine(engine: FakeEngine) -> Engine:
    """The fake engine as what it is; its tokenizer's narrower type hides that from mypy."""
    return cast("Engine", engine)


@asynccontextmanager
async def serving(app: ASGIApp, path: Path) -> AsyncIterator[HostServer]:
    """A real uvicorn on a unix socket, as hosts and nodes run it."""
    server = HostServer(
        uvicorn.Config(
            app,
            http="httptools",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
        )
    )
    serving = asyncio.ensure_future(server.serve(sockets=[listen(path)]))
    while not server.started:
        await asyncio.sleep(0.001)
    try:
        yield server
    finally:
        server.should_exit = server.force_exit = True
        await serving


@dataclass
class RunningHost:
    """A host's app over a real server, and a client with a valid capability."""

    host: Host
    engine: FakeEngine
    signer: Signer
    socket: Path
    client: httpx.AsyncClient

    def authorization(self, domain: str = "d", model: str = "echo") -> dict[str, str]:
        """The header of a gateway's request."""
        return {"authorization": f"Bearer {self.signer.mint(domain, model)}"}


@asynccontextmanager
async def running_host(
    folder: Path, engine: FakeEngine | None = None
) -> AsyncIterator[RunningHost]:
    """The host app of a fake engine, called `echo`, on a unix socket in `folder`."""
    engine = engine or FakeEngine(faults=True)
    thread = EngineThread(lambda: as_engine(engine))
    await thread.start()
    signer = Signer(SEED)
    host = Host("echo", as_engine(engine), thread, Verifier(signer.public_keys(), "echo"), 16)
    path = folder / "host.sock"
    try:
        async with serving(host.asgi(), path), client(str(path), 10) as http:
            yield RunningHost(host, engine, signer, path, http)
            if isinstance(engine, GatedEngine):
                engine.open()
    finally:
        if isinstance(engine, GatedEngine):
            engine.open()
        await asyncio.to_thread(thread.close)


@asynccontextmanager
async def node_on(settings: Settings) -> AsyncIterator[tuple[Node, asyncio.Event]]:
    """A node with its real hosts; it drains once the event is set, or at the end."""
    stop, node = asyncio.Event(), Node(settings)
    running = asyncio.ensure_future(node.run(stop))
    path = node_socket(settings.state_dir)
    while not path.exists():
        await asyncio.sleep(0.002)
    try:
        yield node, stop
    finally:
        stop.set()
        await running
        assert not path.exists()


@asynccontextmanager
async def running_node(settings: Settings) -> AsyncIterator[asyncio.Event]:
    """The same for who needs no more than its end."""
    async with node_on(settings) as (_, stop):
        yield stop
