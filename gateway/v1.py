"""The `/v1` routes as one raw ASGI app: routing, errors to HTTP, one log line a request."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial

import structlog
from starlette.types import Receive, Scope, Send

from gateway import (
    budget_routes,
    export_routes,
    limit_routes,
    model_routes,
    openapi_route,
    token_routes,
    usage_routes,
    whoami,
)
from gateway.asgi import Call
from gateway.completions import complete
from gateway.env import Env
from gateway.errors import (
    BadRequest,
    Internal,
    MethodNotAllowed,
    NotFound,
    Refusal,
    Stopping,
    StoreDown,
)
from gateway.ledger import CLIENT_CLOSED_REQUEST
from gateway.metrics.counts import Counts
from gateway.sampling import is_told
from gateway.schema import ENDPOINTS
from gateway.stopper import ClientGone
from gateway.store.errors import StoreUnavailable
from runtime import logs

log = structlog.get_logger()

STOPPING = "the server is stopping and could not finish this answer; try again"
UNSENT = "the server is stopping, and the request was not sent to its end; try again"

Handler = Callable[[Env, Call], Awaitable[None]]

ROUTES: dict[str, tuple[str, Handler]] = {
    **{
        path: ("POST", partial(complete, decode=endpoint.decode))
        for path, endpoint in ENDPOINTS.items()
    },
    "/v1/models": ("GET", model_routes.index),
    "/v1/usage": ("GET", usage_routes.usage),
    "/v1/budgets": ("GET", budget_routes.budgets),
    "/v1/limits": ("GET", limit_routes.limits),
    "/v1/usage/export": ("GET", export_routes.usage_export),
    "/v1/usage/export/manifest": ("GET", export_routes.manifest),
    "/v1/tokens": ("POST", token_routes.mint),
    "/v1/whoami": ("GET", whoami.whoami),
    "/v1/openapi.json": ("GET", openapi_route.openapi),
}


class V1:
    """Answers everything under /v1. `env` is set once the app has started."""

    def __init__(self) -> None:
        self.env: Env | None = None
        self.counts = Counts(ROUTES)
        self._calls: set[Call] = set()

    def in_force(self) -> Env:
        """What requests are given that come now."""
        assert self.env is not None, "requests come after the lifespan's start"
        return self.env

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        env = self.in_force()
        call = Call(scope, receive, send)
        self._calls.add(call)
        try:
            await self._answer(env, call)
        except ClientGone:
            await call.part()
            call.status = CLIENT_CLOSED_REQUEST
        finally:
            self._calls.discard(call)
            tell(self.in_force(), call, self.counts)

    @property
    def is_idle(self) -> bool:
        """Whether nobody is being answered."""
        return not self._calls

    def stop(self) -> None:
        """End the answers that still run."""
        for call in self._calls:
            call.stop(Stopping(STOPPING))

    def stop_unsent(self, after_s: float) -> None:
        """End the requests that have not been sent whole, so long after they began."""
        now = time.perf_counter()
        for call in self._calls:
            if call.is_reading and now - call.began >= after_s:
                call.stop(Stopping(UNSENT))

    async def _answer(self, env: Env, call: Call) -> None:
        try:
            await self._handle(env, call)
        except Refusal as fault:
            await call.fail(fault)
        except StoreUnavailable:
            await call.fail(StoreDown("the store can't be read just now; try again"))
        except (ClientGone, OSError):  # a server may tell of a client that left by a failing send
            raise ClientGone from None
        except Exception:
            log.exception("internal_error", request_id=call.id)
            await call.fail(Internal(f"an internal error; please report request {call.id}"))

    async def _handle(self, env: Env, call: Call) -> None:
        path = call.scope["path"]
        if call.repeats(b"host"):
            raise BadRequest("the Host header may be sent only once")
        if env.is_routed is not None and not env.is_routed(call.header(b"host"), path):
            raise no_route(path)
        if env.cors is not None:
            env.cors.greet(call)
            if env.cors.is_preflight(call):
                await env.cors.answer_preflight(call)
                return
        await route(call)(env, call)


def tell(env: Env, call: Call, counts: Counts) -> None:
    """Say of a request that has ended what operators may know: nothing of its content."""
    fields = {
        "request_id": call.id,
        "method": call.scope["method"],
        "path": call.scope["path"][:128],
        "status": call.status,
        "duration_ms": round((time.perf_counter() - call.began) * 1000, 1),
        **call.notes,
    }
    counts.saw(fields)
    env.telemetry.saw(fields, call.header)
    env.payloads.put(call.listener, fields)
    failed = call.status >= 400 or "code" in call.notes
    if is_told(env.observability, call.id, failed=failed):
        logs.tell("request", fields)
    env.events.send(fields)


def route(call: Call) -> Handler:
    """The handler of a call's path. Raises NotFound or MethodNotAllowed."""
    path: str = call.scope["path"]
    method, handler = ROUTES.get(path, ("", None))
    if handler is None and path.startswith(model_routes.PREFIX):
        method, handler = "GET", model_routes.show
    if handler is None:
        raise no_route(path)
    if call.scope["method"] != method:
        raise MethodNotAllowed(f"{path[:128]} takes {method}", allow=method)
    return handler


def no_route(path: str) -> NotFound:
    """Nothing is answered there, be it for its path or for the host name it was asked at."""
    return NotFound(f"there is no route {path[:128]}; see docs/api.md for those there are")
