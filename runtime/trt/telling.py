"""What a launcher tells over HTTP: how its server does, and what the guard in it saw.

`GET /` is the first, for people and scripts. `GET /events` is the second: a line of JSON a second
with the guard's counters, and one for each violation as it comes. It ends with the server's life:
whoever follows counts silence as "not well". On a private socket anybody of this machine's user is
told; elsewhere only who shows the secret, if there is one.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress

import uvicorn
from msgspec import json, structs
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from runtime.asgi import while_connected
from runtime.host.process import HostServer
from runtime.tls.listener import bind, listen
from runtime.trt.bind import Bind
from runtime.trt.feed import Feed
from runtime.trt.view import View

EVERY_S = 1.0  # from one line of counters to the next
STUCK_S = 10.0  # a follower that takes nothing for so long is let go
MAX_FOLLOWERS = 32
MAX_CONNECTIONS = 128
NO_GUARD = "no guard runs: the server starts, or is to be replaced, or has none"
JSON, LINES, TEXT = b"application/json", b"application/x-ndjson", b"text/plain; charset=utf-8"


class Telling:
    """`view` says how the server does; `feed`, while one is in service, what its guard tells."""

    def __init__(self, view: Callable[[], View], feed: Callable[[], Feed | None]) -> None:
        self._view = view
        self._feed = feed
        self.followers = 0

    def app(self, secret: str = "") -> ASGIApp:
        """For one listener. Where there is a secret, a caller has to show it."""
        expected = f"Bearer {secret}".encode()

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                return
            request = Request(scope)
            shown = request.headers.get("authorization", "").encode()
            if secret and not hmac.compare_digest(shown, expected):
                await _refuse(send, 401, "show the guard's secret as a bearer token")
            elif scope["method"] not in ("GET", "HEAD"):
                await _refuse(send, 405, "only GET")
            elif scope["path"] == "/":
                view = structs.replace(self._view(), followers=self.followers)
                body = json.format(json.encode(view), indent=2) + b"\n"
                await _answer(send, 200, JSON, body)
            elif scope["path"] == "/events":
                await self._events(request, receive, send)
            else:
                await _refuse(send, 404, "there are / and /events")

        return answer

    async def _events(self, request: Request, receive: Receive, send: Send) -> None:
        feed = self._feed()
        if feed is None or feed.is_over:
            await _refuse(send, 503, NO_GUARD)
        elif self.followers >= MAX_FOLLOWERS:
            await _refuse(send, 503, f"{self.followers} follow already; that is the most")
        else:
            self.followers += 1
            try:
                await while_connected(_tell(feed, _begin(feed, request), send), receive)
            finally:
                self.followers -= 1


def _begin(feed: Feed, request: Request) -> int:
    """From which violation on: those to come, unless a follower says what it has heard."""
    boot, after = request.query_params.get("boot", ""), request.query_params.get("after", "")
    if not boot or not after.isdecimal():
        return len(feed.violations)
    return feed.position_after(boot, int(after[:9]))


async def _tell(feed: Feed, position: int, send: Send) -> None:
    headers = [(b"content-type", LINES), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    loop = asyncio.get_running_loop()
    due = loop.time()
    with suppress(TimeoutError), feed.following() as news:
        while True:
            news.clear()
            is_over = feed.is_over
            body, position = _new(feed, position)
            if body or loop.time() >= due or is_over:
                due = loop.time() + EVERY_S
                body = _line(feed) + body
                await _part(send, body, more=not is_over)
            if is_over:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await news.wait()
                due = loop.time()  # woken: the counters are told with it


def _new(feed: Feed, position: int) -> tuple[bytes, int]:
    new = feed.violations[position:]
    return b"".join(json.encode({"violation": one}) + b"\n" for one in new), position + len(new)


def _line(feed: Feed) -> bytes:
    """The counters; nothing of a guard whose counters are gone, since nothing is known of it."""
    if feed.state is None:
        return b""
    more = {"leaving": True} if feed.is_leaving else {}
    return json.encode(feed.state.told() | more) + b"\n"


async def _part(send: Send, body: bytes, *, more: bool) -> None:
    """Raises TimeoutError for a follower that takes nothing."""
    async with asyncio.timeout(STUCK_S):
        await send({"type": "http.response.body", "body": body, "more_body": more})


async def _answer(send: Send, status: int, kind: bytes, body: bytes) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _refuse(send: Send, status: int, why: str) -> None:
    await _answer(send, status, TEXT, f"{why}\n".encode())


class Listeners:
    """Where a launcher is asked: sockets that listen already, and what each answers."""

    def __init__(self, doors: Iterable[tuple[socket.socket, ASGIApp]]) -> None:
        self._servers = [(_server(app), sock) for sock, app in doors]

    async def serve(self) -> None:
        """Until `stop`."""
        await asyncio.gather(*(server.serve(sockets=[sock]) for server, sock in self._servers))

    def stop(self) -> None:
        """Hold nobody any more."""
        for server, _ in self._servers:
            server.should_exit = True


def open_door(where: Bind) -> socket.socket:
    """A listening socket for followers elsewhere. Raises PortInUse."""
    sock = bind(where.host, where.port, option="guard_url or --events")
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # a follower whose machine is gone is soon let go
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STUCK_S * 1000))
    listen(sock)
    return sock


def _server(app: ASGIApp) -> HostServer:
    return HostServer(
        uvicorn.Config(
            app,
            http="httptools",
            lifespan="off",
            log_config=None,
            access_log=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
    )
