"""The `/v1` routes as one raw ASGI app: routing, errors to HTTP, one log line a request."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial

import structlog
from starlette.types import Receive, Scope, Send

from gateway import model_routes, usage_routes
from gateway.asgi import Call, ClientGone
from gateway.completions import complete
from gateway.env import Env
from gateway.errors import Internal, MethodNotAllowed, NotFound, Refusal, StoreDown
from gateway.ledger import CLIENT_CLOSED_REQUEST
from gateway.schema import decode_chat, decode_completion
from gateway.store.errors import StoreUnavailable

log = structlog.get_logger()

Handler = Callable[[Env, Call], Awaitable[None]]

ROUTES: dict[str, tuple[str, Handler]] = {
    "/v1/chat/completions": ("POST", partial(complete, decode=decode_chat)),
    "/v1/completions": ("POST", partial(complete, decode=decode_completion)),
    "/v1/models": ("GET", model_routes.index),
    "/v1/usage": ("GET", usage_routes.usage),
    "/v1/usage/export": ("GET", usage_routes.usage_export),
}


class V1:
    """Answers everything under /v1. `env` is set once the app has started."""

    def __init__(self) -> None:
        self.env: Env | None = None
        self._calls: set[Call] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.env is not None, "requests come after the lifespan's start"
        call = Call(scope, receive, send)
        self._calls.add(call)
        try:
            await self._answer(self.env, call)
        except ClientGone:
            call.status = CLIENT_CLOSED_REQUEST
        finally:
            self._calls.discard(call)
            tell(self.env, call)

    def stop(self) -> None:
        """End the answers that still run."""
        for call in self._calls:
            call.stop()

    async def _answer(self, env: Env, call: Call) -> None:
        try:
            await route(call)(env, call)
        except Refusal as fault:
            await call.fail(fault)
        except StoreUnavailable:
            await call.fail(StoreDown("the store can't be read just now; try again"))
        except (ClientGone, OSError):  # a server may tell of a client that left by a failing send
            raise ClientGone from None
        except Exception:
            log.exception("internal_error", request_id=call.id)
            await call.fail(Internal(f"an internal error; please report request {call.id}"))


def tell(env: Env, call: Call) -> None:
    """Say of a request that has ended what operators may know: nothing of its content."""
    fields = {
        "request_id": call.id,
        "method": call.scope["method"],
        "path": call.scope["path"][:128],
        "status": call.status,
        "duration_ms": round((time.perf_counter() - call.began) * 1000, 1),
        **call.notes,
    }
    log.info("request", **fields)
    env.events.send(fields)


def route(call: Call) -> Handler:
    """The handler of a call's path. Raises NotFound or MethodNotAllowed."""
    path: str = call.scope["path"]
    method, handler = ROUTES.get(path, ("", None))
    if handler is None and path.startswith(model_routes.PREFIX):
        method, handler = "GET", model_routes.show
    if handler is None:
        raise NotFound(f"there is no route {path[:128]}; see docs/api.md for those there are")
    if call.scope["method"] != method:
        raise MethodNotAllowed(f"{path[:128]} takes {method}", allow=method)
    return handler
