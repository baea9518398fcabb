"""create_app: the only place where the gateway's parts are wired together."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import parent
from gateway.env import Env
from gateway.parts import open_parts, running
from gateway.v1 import V1
from runtime import logs, settings as config
from runtime.settings import Settings

log = structlog.get_logger()

FAREWELL_S = 1.5  # what is left of a drain to tell clients that their answer won't end


def create_app(settings: Settings) -> ASGIApp:
    """The gateway as an ASGI app: `/v1` straight to its routes, everything else by Starlette."""
    v1 = V1()

    def drain() -> None:
        """The server stops: soon, answers that still run would be cut off. End them before."""
        log.info("gateway_stopping")
        grace_s = max(0.0, settings.file.server.drain_s - FAREWELL_S)
        asyncio.get_running_loop().call_later(grace_s, v1.stop)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with open_env(settings) as env, running(parent.watch(settings.state_dir, drain)):
            v1.env = env
            log.info(
                "gateway_started",
                name=settings.file.name,
                models=[deployment.id for deployment in env.catalog],
            )
            yield
        log.info("gateway_stopped")

    async def healthz(_: Request) -> Response:
        """This process runs."""
        return JSONResponse({"status": "ok"})

    async def readyz(_: Request) -> Response:
        """Every model can answer, and keys can be checked."""
        return readiness(v1.env)

    rest = Starlette(
        routes=[Route("/healthz", healthz), Route("/readyz", readyz), Mount("/", v1)],
        lifespan=lifespan,
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1/"):
            await v1(scope, receive, send)
        else:
            await rest(scope, receive, send)

    return app


def from_environment() -> ASGIApp:
    """The app of a server's worker process, which finds its settings in the environment."""
    logs.configure()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it reaches the whole group; the parent decides
    settings, _ = config.load()
    app = create_app(settings)
    # What is loaded now stays: leave it out of collections, which cost a tenth of a request.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    return app


def readiness(env: Env | None) -> Response:
    """200, or 503 with what is missing."""
    missing = ["starting"] if env is None else []
    if env is not None:
        if env.directory.is_blind(env.clock.now_us()):
            missing.append("store")
        missing += [d.id for d in env.catalog if not d.is_attached and not env.hosts.ready(d.id)]
    body = {"status": "ready" if not missing else "not ready", "missing": missing}
    return JSONResponse(body, 503 if missing else 200)


@asynccontextmanager
async def open_env(settings: Settings) -> AsyncIterator[Env]:
    """The parts, and an Env of them that stays as it is."""
    async with open_parts(settings) as parts:
        yield parts.env(settings)
