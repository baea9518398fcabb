"""A small HTTP server that a test scripts byte by byte: what other people's servers do."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Exchange:
    """One request, and the way to answer it."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    number: int  # of the connection it came on
    _reader: asyncio.StreamReader = field(repr=False)
    _writer: asyncio.StreamWriter = field(repr=False)

    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key == name]
        return found[0] if found else None

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def reply(self, status: int, body: bytes, kind: str = "application/json") -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        await self.send(head.encode() + body)

    async def reply_json(self, status: int, body: object) -> None:
        await self.reply(status, json.dumps(body).encode())

    async def events(self, *data: bytes | dict[str, Any], end: bool = True) -> None:
        """An event stream, one chunk an event."""
        await self.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for one in data:
            await self.event(one)
        if end:
            await self.send(b"0\r\n\r\n")

    async def event(self, data: bytes | dict[str, Any]) -> None:
        text = data if isinstance(data, bytes) else b"data: " + json.dumps(data).encode() + b"\n\n"
        await self.send(b"%x\r\n%s\r\n" % (len(text), text))

    async def gone(self) -> None:
        """Returns when the caller has closed the connection."""
        assert await self._reader.read() == b""

    def reset(self) -> None:
        """Close it the hard way."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def close(self) -> None:
        self._writer.close()


Answer = Callable[[Exchange], Awaitable[None]]


class Upstream:
    """The server. `answer` is called for each request; `asked` remembers them."""

    def __init__(self, answer: Answer, scheme: str = "http") -> None:
        self.answer = answer
        self._scheme = scheme
        self.asked: list[Exchange] = []
        self.connections = 0
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            while True:
                exchange = await _read(reader, writer, number)
                self.asked.append(exchange)
                await self.answer(exchange)
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()


async def _read(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
) -> Exchange:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = [(k.lower(), v.strip()) for k, _, v in (line.partition(":") for line in lines)]
    size = int(dict(headers).get("content-length", 0))
    body = await reader.readexactly(size)
    return Exchange(method, path, headers, body, number, reader, writer)


@asynccontextmanager
async def upstream(
    answer: Answer, *, path: str = "", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Upstream]:
    """The server on a port of its own, over TLS or not, or on a unix socket."""
    found = Upstream(answer, scheme="https" if tls else "http")
    if path:
        server = await asyncio.start_unix_server(found._serve, path)
    else:
        server = await asyncio.start_server(found._serve, "127.0.0.1", 0, ssl=tls)
        found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
        tasks = list(found._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
