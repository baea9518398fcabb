"""An app of one handler, served by a real uvicorn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from starlette.types import Receive, Scope, Send

from gateway.asgi import Call
from gateway.errors import (
    Refusal,
)
from gateway.stopper import ClientGone
from runtime.node.probe import client
from tests.runtime.servers import serving

Handler = Callable[[Call], Awaitable[None]]
LIMIT = 1000


class Served:
    """An app of one handler, and how its calls ended."""

    def __init__(self, handler: Handler, socket: Path, http: httpx.AsyncClient) -> None:
        self.handler, self.socket, self.http = handler, socket, http
        self.ends: asyncio.Queue[str] = asyncio.Queue()

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive, send)
        try:
            try:
                await self.handler(call)
            except Refusal as fault:
                await call.fail(fault)
            self.ends.put_nowait("answered")
        except ClientGone:
            self.ends.put_nowait("gone")

    async def ended(self) -> str:
        return await asyncio.wait_for(self.ends.get(), 30)

    async def connect(self, head: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(str(self.socket))
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\n" + head)
        await writer.drain()
        return reader, writer


@asynccontextmanager
async def served(folder: Path, handler: Handler) -> AsyncIterator[Served]:
    path = folder / "gateway.sock"
    async with client(str(path), 10) as http:
        found = Served(handler, path, http)
        async with serving(found.app, path):
            yield found


async def echo(call: Call) -> None:
    await call.send_json(200, await call.body(LIMIT))


async def events_of(app: Served) -> bytes:
    answer = await app.http.post("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-request-id"].startswith("req_")
    return answer.content
