"""One connection to Redis, on which all calls of this process follow each other.

A call costs a fraction of what redis-py's does, which takes a connection out of a pool for each: a
request makes two. And its retries must not be made here: a call that failed may have been counted.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import parse_qs, unquote, urlsplit

from gateway.limits.resp import BadReply, Fault, Replies, Reply, Word, call
from runtime.tls.certificates import BadCertificate

PORT = 6379
OTHER_MODES = {
    b"cluster": "it is part of a Redis Cluster, which isn't supported: name a single server",
    b"sentinel": "it is a Sentinel, which isn't supported: name the server that takes writes",
}


class Broken(OSError):
    """The connection ended, or couldn't be made."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a Redis is, and as whom it's called."""

    host: str
    port: int
    path: str  # of a unix socket, in place of both
    is_tls: bool
    database: int
    user: str
    password: str = field(repr=False)

    @classmethod
    def of(cls, url: str, password: str = "") -> Address:
        """Of `redis://user@host:6379/0`, `rediss://…` or `unix:///path?db=0`."""
        parts = urlsplit(url)
        is_unix = parts.scheme == "unix"
        number = parse_qs(parts.query).get("db", ["0"])[0] if is_unix else parts.path.strip("/")
        return cls(
            host=parts.hostname or "localhost",
            port=parts.port or PORT,
            path=unquote(parts.path) if is_unix else "",
            is_tls=parts.scheme == "rediss",
            database=int(number or 0),
            user=unquote(parts.username or ""),
            password=password,
        )


class RedisClient:
    """Connects when it's needed, and again after it was lost.

    `tls` is asked for the context of each connection by TLS.
    """

    def __init__(
        self, address: Address, tls: Callable[[], ssl.SSLContext] = ssl.create_default_context
    ) -> None:
        self._address = address
        self._tls = tls
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()

    async def call(self, *words: Word) -> Reply:
        """The answer to a command. Raises Fault or OSError; who waits no longer should `drop`."""
        connection = self._connection
        if connection is None or connection.is_lost:
            connection = await self._connect()
        reply = await connection.send(call(words))
        if isinstance(reply, Fault):
            raise reply
        return reply

    def drop(self) -> None:
        """End the connection: whatever was asked gets no answer."""
        if self._connection is not None:
            self._connection.drop()
            self._connection = None

    async def aclose(self) -> None:
        """`drop`, and wait until it's closed."""
        connection = self._connection
        self.drop()
        if connection is not None:
            await connection.closed.wait()

    async def _connect(self) -> _Connection:
        async with self._connecting:
            if self._connection is not None and not self._connection.is_lost:
                return self._connection
            connection = await self._opened()
            try:
                await self._greet(connection)
            except BaseException:
                connection.drop()
                raise
            self._connection = connection
            return connection

    async def _opened(self) -> _Connection:
        loop, address = asyncio.get_running_loop(), self._address
        connection = _Connection()
        if address.path:
            await loop.create_unix_connection(lambda: connection, address.path)
        else:
            try:
                tls = self._tls() if address.is_tls else None
            except BadCertificate as fault:
                raise Broken(str(fault)) from None
            await loop.create_connection(lambda: connection, address.host, address.port, ssl=tls)
        return connection

    async def _greet(self, connection: _Connection) -> None:
        address = self._address
        hellos: list[tuple[Word, ...]] = []
        if address.password:
            who = (address.user,) if address.user else ()
            hellos.append(("AUTH", *who, address.password))
        if address.database:
            hellos.append(("SELECT", address.database))
        for reply in [await connection.send(call(words)) for words in hellos]:
            if isinstance(reply, Fault):
                raise reply
        if told := OTHER_MODES.get(_mode(await connection.send(call(("HELLO", 2))))):
            raise Broken(told)


def _mode(hello: Reply) -> bytes:
    """What a server says it is; b"" if it doesn't: before Redis 6, or to a user who may not ask."""
    words = hello if isinstance(hello, list) else []
    found = dict(zip(words[::2], words[1::2], strict=False)).get(b"mode")
    return found if isinstance(found, bytes) else b""


class _Connection(asyncio.Protocol):
    """Calls and their answers, in the same order."""

    def __init__(self) -> None:
        self._replies = Replies()
        self._asked: deque[asyncio.Future[Reply]] = deque()
        self._transport: asyncio.Transport | None = None
        self.is_lost = False
        self.closed = asyncio.Event()

    def send(self, data: bytes) -> asyncio.Future[Reply]:
        """Done when the answer has come. Broken, if none will."""
        if self.is_lost or self._transport is None:
            raise Broken("the connection ended")
        self._transport.write(data)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._asked.append(answer)
        return answer

    def drop(self) -> None:
        """End it now."""
        if self._transport is not None:
            self._transport.abort()
        self._lose("the connection was given up")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio.Protocol has it."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """As asyncio.Protocol has it."""
        try:
            for reply in self._replies.push(data):
                answer = self._asked.popleft()
                if not answer.done():  # who asked may have left
                    answer.set_result(reply)
        except (BadReply, IndexError):
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio.Protocol has it."""
        self._lose(str(exc or "the connection ended"))
        self.closed.set()

    def _lose(self, why: str) -> None:
        self.is_lost = True
        while self._asked:
            answer = self._asked.popleft()
            if not answer.done():
                answer.set_exception(Broken(why))
