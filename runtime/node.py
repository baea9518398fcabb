"""The node: owns one machine's hosts and tells on `node.sock` where they are.

GET /hosts?after=V&wait_s=S answers when the set of hosts differs from version V, or after S
seconds: a gateway keeps asking, and so hears of a death within milliseconds.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress

import structlog
import uvicorn
from msgspec import Struct, json
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runtime import keyring, state, weights
from runtime.capability import Signer
from runtime.host import HostServer, HostSpec, listen
from runtime.models import ModelSettings
from runtime.pool import HostView, Pool
from runtime.settings import Settings, child_environment

log = structlog.get_logger()

MAX_WAIT_S = 60.0
CAPABILITY_LABEL = "capability"


class Hosts(Struct, frozen=True, kw_only=True):
    """All hosts of a node, at one version."""

    version: int
    hosts: list[HostView]


class Node:
    """Starts a pool for every model of our own engines, and serves `node.sock`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._version = time.time_ns()  # never one that an earlier node has told
        self._boot = secrets.token_hex(3)  # in the hosts' ids, which no later node may use again
        self._changed = asyncio.Condition()
        self._notifying: asyncio.Future[None] | None = None  # held, or it could be collected
        self._is_stopping = False
        self._sockets = state.runtime_dir(settings.state_dir)
        root = keyring.load(settings.state_dir, settings.root_secret)
        self._public_keys = Signer(root.derive(CAPABILITY_LABEL)).public_keys()
        env = child_environment(settings, OMP_WAIT_POLICY="PASSIVE")
        self._pools = [
            Pool(self._spec_of(model, index), env, settings.file.hosts, self._note_change)
            for index, model in enumerate(settings.file.models)
            if model.engine != "openai"
        ]
        self._server = HostServer(
            uvicorn.Config(
                self._app(),
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=2,
            )
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the hosts until `stop`, then drain them."""
        path = state.node_socket(self._settings.state_dir)
        serving = asyncio.ensure_future(self._server.serve(sockets=[listen(path)]))
        for pool in self._pools:
            pool.start()
        log.info("node_started", socket=str(path), models=[p.view.model for p in self._pools])
        await stop.wait()
        drain_s = self._settings.file.server.drain_s
        await asyncio.gather(*(pool.stop(drain_s) for pool in self._pools))
        self._is_stopping = True
        self._note_change()  # whoever still polls is answered, and not kept waiting again
        self._server.should_exit = True
        await serving
        path.unlink(missing_ok=True)
        with suppress(OSError):  # not empty: another node of this folder is about to start
            self._sockets.rmdir()

    def hosts(self) -> Hosts:
        """The hosts as of now."""
        return Hosts(version=self._version, hosts=[pool.view for pool in self._pools])

    def _spec_of(self, model: ModelSettings, index: int) -> Callable[[int], HostSpec]:
        def spec(start: int) -> HostSpec:
            host_id = f"host-{self._boot}-{index}-{start}"
            return HostSpec(
                id=host_id,
                model=model.id,
                engine=model.engine,
                path=str(weights.folder(self._settings, model)),
                socket=str(self._sockets / f"{self._boot}-{index}-{start}.sock"),
                public_keys=self._public_keys,
                default_max_tokens=model.default_max_tokens,
                drain_s=self._settings.file.server.drain_s,
                options=model.options,
            )

        return spec

    def _app(self) -> Starlette:
        return Starlette(routes=[Route("/hosts", self._hosts)])

    async def _hosts(self, request: Request) -> Response:
        after = int(request.query_params.get("after", 0))
        wait_s = min(MAX_WAIT_S, float(request.query_params.get("wait_s", 0)))
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(lambda: self._is_stopping or self._version != after)
        return Response(json.encode(self.hosts()), media_type="application/json")

    def _note_change(self) -> None:
        self._version += 1
        self._notifying = asyncio.ensure_future(self._notify())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
