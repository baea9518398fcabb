"""HTTP to the engines: aiohttp underneath, two faces on top.

`send` is the relay's: no httpx object is built on the hot path. `handle_async_request` makes the
same connections an httpx transport, for everything else. httpx's own pool is never used here: its
work per request grows with the square of the requests in flight (encode/httpx#3215).

A request that is cancelled, or whose answer isn't read to its end, closes its connection: a reply
left in a pooled connection would reach the next caller.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from socket import gaierror

import aiohttp
import httpx

from runtime.host.process import KEEP_ALIVE_S as HOST_KEEP_ALIVE_S
from runtime.tls.certificates import BadCertificate

# An idle connection is given up before its server would: a request that meets the server's close
# is lost, and may not be sent again. Many servers close after 5 s.
FOREIGN_KEEP_ALIVE_S = 3
HOST_IDLE_S = HOST_KEEP_ALIVE_S / 2
# Compressed or chunk-coalesced bytes would hold tokens back, so engines are asked for plain ones.
PLAIN = {"accept-encoding": "identity"}


MAYBE_REFUSED = "if it was always so, it may refuse our certificate (tls.cert), or ask for one"


class ConnectFailed(Exception):
    """No connection: nothing was sent, so the request may be sent elsewhere."""


class Broken(Exception):
    """The connection ended before the answer did."""


class Reply:
    """An answer whose status and headers are in, and whose body is still coming."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises Broken."""
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except aiohttp.ClientError as fault:
            raise Broken(type(fault).__name__) from None

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises Broken, also when it is over `limit` bytes."""
        parts, size = [], 0
        async for chunk in self.chunks():
            parts.append(chunk)
            size += len(chunk)
            if size > limit:
                raise Broken(f"more than {limit} bytes")
        return b"".join(parts)


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
        self._socket = socket
        self._tls = tls
        self._keep_alive_s = keep_alive_s
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_s)
        self._session: aiohttp.ClientSession | None = None
        self._in_flight = 0
        self._retired = False

    def _connector(self) -> aiohttp.BaseConnector:
        if self._socket:
            return aiohttp.UnixConnector(self._socket, limit=0, keepalive_timeout=HOST_IDLE_S)
        return aiohttp.TCPConnector(limit=0, keepalive_timeout=self._keep_alive_s)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:  # made on first use: a session belongs to the running loop
            connector = self._connector()
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=self._timeout,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("user-agent", "accept"),
            )
        return self._session

    @asynccontextmanager
    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> AsyncIterator[Reply]:
        """One exchange. Raises ConnectFailed or Broken; leaving early closes the connection."""
        self._in_flight += 1
        try:
            async with self._exchange(method, url, headers, body) as reply:
                yield reply
        finally:
            self._in_flight -= 1
            if self._retired and not self._in_flight:
                await self.aclose()

    @asynccontextmanager
    async def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> AsyncIterator[Reply]:
        try:
            response = await self._open_session().request(
                method,
                url,
                headers=PLAIN | dict(headers),
                data=body,
                allow_redirects=False,
                ssl=self._tls() if self._tls else True,
            )
        except BadCertificate as fault:
            raise ConnectFailed(str(fault)) from None
        except aiohttp.ClientSSLError as fault:
            raise ConnectFailed(_refusal_of(fault)) from None
        except aiohttp.ClientConnectorError as fault:
            raise ConnectFailed(_why(fault.os_error)) from None
        except aiohttp.ConnectionTimeoutError:
            raise ConnectFailed("no connection in time") from None
        except aiohttp.ClientError as fault:
            if isinstance(fault.__cause__, ssl.SSLError):  # it refuses our certificate: TLS 1.3
                raise ConnectFailed(_refusal_of(fault)) from None  # tells so after the handshake
            raise Broken(self._told(fault)) from None
        try:
            yield Reply(response)
        finally:
            response.close()  # back to the pool if it was read to its end, else closed

    def _told(self, fault: aiohttp.ClientError) -> str:
        """Why there is no answer. Of a refused certificate no more may be left than a closed door:
        in TLS 1.3 it is refused after our handshake, and what we send meanwhile loses the alert.
        """
        kind = type(fault).__name__
        is_closed = isinstance(fault, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
        return f"{kind}; {MAYBE_REFUSED}" if self._tls and is_closed else kind

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """httpx's seam over the same connections."""
        headers = {k: v for k, v in request.headers.items() if k != "transfer-encoding"}
        exchange = self.send(request.method, str(request.url), headers, await request.aread())
        try:
            reply = await exchange.__aenter__()
        except ConnectFailed as fault:
            raise httpx.ConnectError(str(fault), request=request) from None
        except Broken as fault:
            raise httpx.RemoteProtocolError(str(fault), request=request) from None
        return httpx.Response(
            reply.status, headers=dict(reply.headers), stream=_Body(reply, exchange)
        )

    async def retire(self) -> None:
        """Close once the running exchanges have ended: their host is draining, or gone.

        One that begins after all opens a connection again, and closes it behind itself.
        """
        self._retired = True
        if not self._in_flight:
            await self.aclose()

    async def aclose(self) -> None:
        """Close every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            await asyncio.sleep(0)  # let aiohttp's transports see the close


def _why(fault: OSError) -> str:
    """In the system's words: asyncio's repeat the address instead."""
    if fault.errno and not isinstance(fault, gaierror):
        return os.strerror(fault.errno)
    return fault.strerror or str(fault) or type(fault).__name__


def _refusal_of(fault: aiohttp.ClientError) -> str:
    """Why there is no TLS between us, as OpenSSL puts it."""
    causes = (fault.__cause__, getattr(fault, "certificate_error", None), *fault.args)
    found = next((cause for cause in causes if isinstance(cause, ssl.SSLError)), None)
    return str(found or fault)


class _Body(httpx.AsyncByteStream):
    """A reply's body for httpx; closing it ends the exchange."""

    def __init__(self, reply: Reply, exchange: AbstractAsyncContextManager[Reply]) -> None:
        self._reply = reply
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._reply.chunks():
                yield chunk
        except Broken as fault:
            raise httpx.ReadError(str(fault)) from None

    async def aclose(self) -> None:
        await self._exchange.__aexit__(None, None, None)
