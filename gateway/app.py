"""create_app: the only place where the gateway's parts are wired together."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial

import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.beside import running
from gateway.budgets.webhook import Hook
from gateway.clock import SYSTEM_CLOCK
from gateway.crons.crons import Crons
from gateway.crons.jobs import warm
from gateway.env import Env
from gateway.metrics.families import Sample
from gateway.metrics.gauges import gauges
from gateway.metrics.socket import answering
from gateway.parts import Parts, open_parts
from gateway.processes.parent import Parent
from gateway.processes.worker import Worker
from gateway.v1 import V1
from runtime import logs, rundir, settings as config
from runtime.deploy import reload
from runtime.deploy.running import Sign, Trouble
from runtime.deployments import NoDeployment
from runtime.settings import ConfigError, Settings

log = structlog.get_logger()


Tell = Callable[[dict[str, tuple[Trouble, ...]]], None]
Following = Callable[[reload.Apply], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def staying(_: reload.Apply) -> AsyncIterator[None]:
    """The settings never change."""
    yield


def keep_to_itself(_: dict[str, tuple[Trouble, ...]]) -> None:
    """Nobody is told."""


def create_app(
    settings: Settings,
    following: Following = staying,
    worker: Worker | None = None,
    tell: Tell = keep_to_itself,
) -> ASGIApp:
    """The gateway as an ASGI app: `/v1` straight to its routes, everything else by Starlette.

    Inside `following` it is told of the settings that come after these. A `worker` has a parent
    that owns the store, and that tells it when to end. The app's own part is to `tell` of its
    attached servers.
    """
    v1 = V1()
    current = settings
    living = worker.living(v1, lambda: current.file) if worker else nullcontext()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with open_parts(settings, is_worker=worker is not None) as parts:
            parts.attached.troubles.on_change = tell
            v1.env = env = parts.env(settings, v1.in_force)
            await parts.keep(settings, env)
            logs.set_level(settings.file.observability.level)

            async def apply(later: Settings, _: int) -> None:
                """Requests that come from now on get these; those that run keep what they have."""
                nonlocal current
                new = parts.env(later, v1.in_force)
                v1.env, current = new, later
                logs.set_level(later.file.observability.level)
                await parts.keep(later, new)

            log.info(
                "gateway_started",
                name=settings.file.name,
                models=[deployment.id for deployment in env.catalog],
            )
            crons = Crons(lambda: current, partial(warm, parts.placement), SYSTEM_CLOCK)
            alerts = parts.alerts.follow(lambda: hook_of(current))
            told = answering(rundir.make(settings.state_dir), told_by(v1, parts))
            async with following(apply), running(crons.follow()), running(alerts), told, living:
                yield
        log.info("gateway_stopped")

    async def healthz(_: Request) -> Response:
        """This process runs."""
        return JSONResponse({"status": "ok"})

    async def readyz(_: Request) -> Response:
        """The node is heard, what is to be warm is warm, and keys can be checked."""
        return readiness(v1.env)

    rest = Starlette(
        routes=[Route("/healthz", healthz), Route("/readyz", readyz), Mount("/", v1)],
        lifespan=lifespan,
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if worker and worker.is_retiring:
            send = worker.last(scope, send)
        if scope["type"] == "http" and scope["path"].startswith("/v1/"):
            await v1(scope, receive, send)
        else:
            await rest(scope, receive, send)

    return app


def told_by(v1: V1, parts: Parts) -> Callable[[], Iterator[Sample]]:
    """What Prometheus is told of this process."""

    def samples() -> Iterator[Sample]:
        is_blind = parts.directory.is_blind(SYSTEM_CLOCK.now_us())
        in_doubt = parts.ledger.in_doubt.is_set()
        yield from v1.counts.samples()
        yield from gauges(
            parts.in_flight.count,
            parts.placement,
            is_blind=is_blind,
            in_doubt=in_doubt,
            limits_together=parts.gate.is_together,
        )

    return samples


def from_parent(parent: Parent) -> ASGIApp:
    """The app of a worker process, which loads what is deployed.

    What can't be started with is told in the log, and ends the process.
    """
    logs.configure()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it reaches the whole group; the parent decides
    state_dir, dev = config.parent_said()
    sign = Sign(state_dir, "gateway", dev=dev)
    try:
        start = reload.load_current(state_dir, dev=dev, told=parent.told)
    except (ConfigError, NoDeployment, OSError) as fault:
        log.error("gateway_not_started", reason=str(fault))
        sys.exit(1)
    following = partial(reload.following, start, sign)
    app = create_app(start.settings, following, Worker(parent), sign.tell)
    # What is loaded now stays: leave it out of collections, which cost a tenth of a request.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()  # see gateway/processes/loading.py
    return app


def hook_of(settings: Settings) -> Hook | None:
    """Where alerts are sent under these settings; None: nowhere."""
    alerts = settings.file.alerts
    if not alerts.url:
        return None
    return Hook(alerts.url, settings.secrets[alerts.secret], settings.file.name)


def readiness(env: Env | None) -> Response:
    """200, or 503 with what is missing."""
    missing = ["starting"] if env is None else []
    if env is not None:
        if env.directory.is_blind(env.clock.now_us()):
            missing.append("store")
        if any(not d.is_attached for d in env.catalog) and not env.hosts.is_heard():
            missing.append("node")
        missing += [d.id for d in env.catalog if d.min_hosts and not env.hosts.ready(d.id)]
    body = {"status": "ready" if not missing else "not ready", "missing": missing}
    return JSONResponse(body, 503 if missing else 200)


@asynccontextmanager
async def open_env(settings: Settings) -> AsyncIterator[Env]:
    """The parts, and an Env of them that stays as it is."""
    async with open_parts(settings) as parts:
        yield parts.env(settings)
