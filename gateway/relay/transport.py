"""HTTP to the engines: our own client underneath (`http1`), two faces on top.

`send` is the relay's: no httpx object is built on the hot path. `handle_async_request` makes the
same connections an httpx transport, for everything else. httpx's own pool is never used here: its
work per request grows with the square of the requests in flight (encode/httpx#3215).

A request that is cancelled, or whose answer isn't read to its end, closes its connection: a reply
left in a pooled connection would reach the next caller.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from functools import cache

import httpx

from gateway.relay.http1.answer import Answer
from gateway.relay.http1.connection import Connection
from gateway.relay.http1.faults import Broken, ConnectFailed
from gateway.relay.http1.pool import Pool
from gateway.relay.http1.request import encode, target_of
from runtime.tls.certificates import BadCertificate
from runtime.wire import HOST_KEEP_ALIVE_S

__all__ = [
    "HOST_IDLE_S",
    "MAYBE_REFUSED",
    "Broken",
    "ConnectFailed",
    "Exchange",
    "Reply",
    "Transport",
]

# An idle connection is given up before its server would: a request that meets the server's close
# is lost, and may not be sent again. Many servers close after 5 s.
FOREIGN_KEEP_ALIVE_S = 3
HOST_IDLE_S = HOST_KEEP_ALIVE_S / 2
# Compressed or chunk-coalesced bytes would hold tokens back, so engines are asked for plain ones.
PLAIN = {"accept-encoding": "identity"}
# What may be sent again if a kept connection ends before a byte of the answer: it changes nothing.
IDEMPOTENT = frozenset(("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"))

MAYBE_REFUSED = "if it was always so, it may refuse our certificate (tls.cert), or ask for one"


class Reply:
    """An answer whose status and headers are in, and whose body is still coming."""

    def __init__(self, connection: Connection, answer: Answer) -> None:
        self._connection = connection
        self._answer = answer
        self.status = answer.status

    @property
    def headers(self) -> httpx.Headers:
        """Its header fields."""
        return httpx.Headers(self._answer.headers)

    @property
    def is_taken(self) -> bool:
        """Whether no more of the body comes: its end is in, and all of it was taken."""
        return self._answer.is_done and not self._answer.held

    async def chunk(self) -> bytes | None:
        """The next bytes of the body; None at its end. Raises Broken."""
        answer, connection = self._answer, self._connection
        while not answer.held:
            if answer.is_done:
                return None
            try:
                await connection.arrived()
            except ssl.SSLError as fault:
                raise Broken(str(fault)) from None
        return connection.take()

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises Broken, also when it is over `limit` bytes."""
        parts, size = [], 0
        while (chunk := await self.chunk()) is not None:
            parts.append(chunk)
            size += len(chunk)
            if size > limit:
                raise Broken(f"more than {limit} bytes")
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Transport(httpx.AsyncBaseTransport):
    """Connections to one upstream: a URL, or a unix socket.

    `tls` is asked for each request, and may raise BadCertificate. `keep_alive_s` is how long an
    idle connection of ours to a URL is kept.
    """

    def __init__(
        self,
        socket: str = "",
        *,
        connect_s: float = 5.0,
        tls: Callable[[], ssl.SSLContext] | None = None,
        keep_alive_s: float = FOREIGN_KEEP_ALIVE_S,
    ) -> None:
        self.tls = tls
        self._pool = Pool(socket, connect_s, HOST_IDLE_S if socket else keep_alive_s)
        self._in_flight = 0
        self._retired = False

    @property
    def num_connections(self) -> int:
        """Connections there are, in use or kept."""
        return len(self._pool)

    def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> Exchange:
        """One exchange, to be entered, or begun and closed; leaving it early closes the connection.

        Entering gives the Reply, and raises ConnectFailed or Broken. Names of headers are in lower
        case.
        """
        return Exchange(self, method, url, headers, body)

    def begin(self) -> Pool:
        """One more exchange runs."""
        self._in_flight += 1
        return self._pool

    async def end(self) -> None:
        """One exchange less."""
        self._in_flight -= 1
        if self._retired and not self._in_flight:
            await self.aclose()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """httpx's seam over the same connections."""
        headers = {k: v for k, v in request.headers.items() if k != "transfer-encoding"}
        exchange = self.send(request.method, str(request.url), headers, await request.aread())
        try:
            reply = await exchange.begin()
        except ConnectFailed as fault:
            raise httpx.ConnectError(str(fault), request=request) from None
        except Broken as fault:
            raise httpx.RemoteProtocolError(str(fault), request=request) from None
        return httpx.Response(reply.status, headers=reply.headers, stream=_Body(reply, exchange))

    async def retire(self) -> None:
        """Close once the running exchanges have ended: their host is draining, or gone.

        One that begins after all opens a connection again, and closes it behind itself.
        """
        self._retired = True
        if not self._in_flight:
            await self.aclose()

    async def aclose(self) -> None:
        """Close every connection."""
        self._pool.close()
        await asyncio.sleep(0)  # let the sockets' own transports see the close


class Exchange:
    """A request and its answer, as a context: entered when the head is in."""

    def __init__(
        self,
        transport: Transport,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> None:
        self._transport = transport
        self._method = method
        self._target = target_of(url)
        self._request = encode(method, self._target, PLAIN | dict(headers), body)
        self._tls: ssl.SSLContext | None = None
        self._pool: Pool | None = None  # while it runs
        self._connection: Connection | None = None

    async def begin(self) -> Reply:
        """Send the request and wait for the answer's head. Raises ConnectFailed or Broken."""
        pool = self._pool = self._transport.begin()
        try:
            self._tls = self._context()
            return await self._answered(pool)
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """End it: the connection is kept if the answer was read to its end, else closed."""
        pool, self._pool = self._pool, None
        if pool is not None:
            self._give_back(pool)
            await self._transport.end()

    async def __aenter__(self) -> Reply:
        return await self.begin()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _answered(self, pool: Pool) -> Reply:
        """Once more on a new connection, if a kept one ends and that can't matter."""
        connection = pool.kept(self._target, self._tls)
        is_new = connection is None
        if connection is None:
            connection = await pool.opened(self._target, self._tls)
        self._connection = connection
        answer = connection.begin(self._method, self._request)
        try:
            while not answer.has_head:
                await connection.arrived()
        except ssl.SSLError as fault:  # it refuses our certificate: TLS 1.3 tells so after the
            if is_new and not answer.is_begun:  # handshake
                raise ConnectFailed(str(fault)) from None
            raise Broken(str(fault)) from None
        except Broken as fault:
            if answer.is_begun:
                raise
            if is_new or self._method not in IDEMPOTENT:
                raise self._unanswered(fault) from None
        else:
            return Reply(connection, answer)
        self._give_back(pool)
        pool.drop_kept(self._target, self._tls)
        return await self._answered(pool)

    def _give_back(self, pool: Pool) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            pool.give_back(connection, self._target, self._tls)

    def _context(self) -> ssl.SSLContext | None:
        try:
            if not self._target.is_tls:
                return None
            return self._transport.tls() if self._transport.tls else default_context()
        except BadCertificate as fault:
            raise ConnectFailed(str(fault)) from None

    def _unanswered(self, fault: Broken) -> Broken:
        """Why there is no answer. Of a refused certificate no more may be left than a closed door:
        in TLS 1.3 it is refused after our handshake, and what we send meanwhile loses the alert.
        """
        return Broken(f"{fault}; {MAYBE_REFUSED}") if self._transport.tls else fault


@cache
def default_context() -> ssl.SSLContext:
    """For servers whose certificate the system's authorities vouch for."""
    return ssl.create_default_context()


class _Body(httpx.AsyncByteStream):
    """A reply's body for httpx; closing it ends the exchange."""

    def __init__(self, reply: Reply, exchange: Exchange) -> None:
        self._reply = reply
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while (chunk := await self._reply.chunk()) is not None:
                yield chunk
        except Broken as fault:
            raise httpx.ReadError(str(fault)) from None

    async def aclose(self) -> None:
        await self._exchange.aclose()
