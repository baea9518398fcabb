"""What every request to the admin API passes: an id, the name it was sent to, and the key.

Nothing is told to who has no key: not even which routes there are.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.admin.key import matches
from gateway.admin.problems import Broken, Problem, Unauthorized, WrongHost
from gateway.ids import new_id

log = structlog.get_logger()

HELP = "send the key in <state>/admin-key as `Authorization: Bearer bh_admin_…`"


class Guard:
    """An ASGI app around another. `names` are the host names that requests may be sent to."""

    def __init__(self, app: ASGIApp, key: str, names: Collection[str]) -> None:
        self._app = app
        self._key = key
        self._names = {name.lower() for name in names} | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        request_id = new_id("req")
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers["cache-control"] = "no-store"
            await send(message)

        headers = Headers(scope=scope)
        try:
            self._check(headers)
        except Problem as problem:
            await answer(problem, request_id)(scope, receive, send_marked)
            return
        try:
            await self._app(scope, receive, send_marked)
        except Exception:
            log.exception("admin_internal_error", request_id=request_id)

    def _check(self, headers: Headers) -> None:
        """Raises WrongHost or Unauthorized."""
        hosts = headers.getlist("host")
        if len(hosts) > 1:
            raise WrongHost("there are several Host headers; send one")
        if not is_ours("".join(hosts), self._names):
            raise WrongHost(
                "the Host header names neither this machine nor the listener's host; "
                "add the name to admin.names if it is yours"
            )
        if not matches(headers.get("authorization", ""), self._key):
            raise Unauthorized(
                f"the admin key is missing or wrong; {HELP}",
                www_authenticate='Bearer realm="bulkhead-admin"',
            )


def is_ours(host: str, names: Collection[str]) -> bool:
    """Whether a Host header is one of `names` or an address.

    A web page can have its own name resolve to us (DNS rebinding), but not make it an address.
    """
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.lower().rstrip(".")
    if name in names:
        return True
    try:
        address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return not getattr(address, "scope_id", None)  # fe80::1%x: what follows may be anything


def answer(problem: Problem, request_id: str) -> Response:
    """A problem as an HTTP answer."""
    return JSONResponse(
        problem.body(request_id),
        problem.row.status,
        headers=problem.headers,
        media_type="application/problem+json",
    )


async def on_problem(request: Request, fault: Exception) -> Response:
    """Starlette's handler of problems."""
    assert isinstance(fault, Problem)
    return answer(fault, request.state.request_id)


async def on_bug(request: Request, _: Exception) -> Response:
    """Starlette's handler of everything else; `Guard` logs it."""
    request_id = request.state.request_id
    return answer(Broken(f"an internal error; please report request {request_id}"), request_id)
