"""create_app: the only place where the gateway's parts are wired together."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import IO, Any

import structlog
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import parent
from gateway.auth import Authenticator
from gateway.catalog import catalog_of
from gateway.clock import SYSTEM_CLOCK
from gateway.env import Env
from gateway.hosts import HostDirectory
from gateway.ids import new_id
from gateway.keys import PEPPER_LABEL
from gateway.ledger import Ledger
from gateway.relay import Relay
from gateway.store.connection import DATABASE
from gateway.store.directory import KeyDirectory
from gateway.store.migrate import migrate
from gateway.store.writer import Writer
from gateway.v1 import V1
from runtime import keyring, logs, settings as config, state
from runtime.capability import Signer
from runtime.node import CAPABILITY_LABEL
from runtime.settings import Settings

log = structlog.get_logger()

LOCK_WAIT_S = 10.0
REPORT_THREADS = 4
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
        async with open_env(settings) as env, _running(parent.watch(settings.state_dir, drain)):
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
    """Build the parts, in the order they need each other; take them down in reverse."""
    root = keyring.load(settings.state_dir, settings.root_secret)
    database = settings.state_dir / DATABASE
    async with AsyncExitStack() as stack:
        stack.enter_context(await _own_store(settings))
        await to_thread.run_sync(migrate, database)
        writer = Writer(database)
        writer.start()
        stack.push_async_callback(to_thread.run_sync, writer.close)
        ledger = Ledger(writer, SYSTEM_CLOCK, boot_id=new_id("boot"))
        if orphans := await ledger.reap_orphans():
            log.warning("orphans_reaped", records=orphans)
        directory = KeyDirectory(database, SYSTEM_CLOCK, include_demo=settings.dev)
        await directory.refresh_if_changed()
        await stack.enter_async_context(_running(directory.watch(asyncio.Event())))
        relay_settings = settings.file.relay
        hosts = HostDirectory(str(state.node_socket(settings.state_dir)), relay_settings.connect_s)
        stack.push_async_callback(hosts.aclose)
        await stack.enter_async_context(_running(hosts.follow()))
        signer = Signer(root.derive(CAPABILITY_LABEL))
        relay = Relay(hosts, signer, root.derive("cache-salt"), relay_settings)
        stack.push_async_callback(relay.aclose)
        yield Env(
            auth=Authenticator(
                directory, SYSTEM_CLOCK, root.derive(PEPPER_LABEL), root.derive("domain")
            ),
            catalog=catalog_of(settings.file.models, settings.secrets),
            clock=SYSTEM_CLOCK,
            directory=directory,
            hosts=hosts,
            ledger=ledger,
            relay=relay,
            database=database,
            report_threads=CapacityLimiter(REPORT_THREADS),
            max_body_bytes=settings.file.limits.max_body_bytes,
            keep_alive_s=relay_settings.keep_alive_s,
        )


async def _own_store(settings: Settings) -> IO[str]:
    """Be the one gateway of this SQLite store; one that was just killed may take a moment to go."""
    deadline = asyncio.get_running_loop().time() + LOCK_WAIT_S
    while True:
        try:
            return state.own(settings.state_dir, "gateway")
        except state.StateInUse:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.1)


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs a coroutine beside, until it is left."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
