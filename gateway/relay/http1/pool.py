"""Connections to one upstream: those in use, and those kept for the next request.

The one that was used last is used next, so that those that aren't needed grow old and are closed.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from contextlib import suppress
from socket import IPPROTO_TCP, SOCK_STREAM, gaierror

from aiohappyeyeballs import start_connection

from gateway.relay.http1.connection import BUFFER_BYTES, Connection
from gateway.relay.http1.faults import ConnectFailed
from gateway.relay.http1.request import Target

NEXT_ADDRESS_S = 0.25  # RFC 8305: a name's next address is tried beside the one before


class Pool:
    """Belongs to one event loop. With `socket`, all connections are to that unix socket."""

    def __init__(self, socket: str, connect_s: float, keep_alive_s: float) -> None:
        self._socket = socket
        self._connect_s = connect_s
        self._keep_alive_s = keep_alive_s
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._idle: dict[object, list[Connection]] = {}
        self._in_use: set[Connection] = set()
        self._sweeping: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Connections there are."""
        return len(self._in_use) + sum(map(len, self._idle.values()))

    def kept(self, target: Target, tls: ssl.SSLContext | None) -> Connection | None:
        """A connection that was used before, and that is as good as new; None if there is none."""
        idle = self._idle.get(_way(target, tls))
        oldest = asyncio.get_running_loop().time() - self._keep_alive_s
        while idle:
            connection = idle.pop()
            if connection.idle_since >= oldest and connection.is_usable:
                self._in_use.add(connection)
                return connection
            connection.abort()
        return None

    async def opened(self, target: Target, tls: ssl.SSLContext | None) -> Connection:
        """A new connection. Raises ConnectFailed."""
        try:
            async with asyncio.timeout(self._connect_s):
                connection = await self._open(target, tls)
        except TimeoutError:
            raise ConnectFailed("no connection in time") from None
        except ssl.SSLError as fault:
            raise ConnectFailed(str(fault)) from None
        except (OSError, UnicodeError) as fault:
            raise ConnectFailed(_why(fault)) from None
        self._in_use.add(connection)
        return connection

    def give_back(self, connection: Connection, target: Target, tls: ssl.SSLContext | None) -> None:
        """An exchange has ended, in whatever way: keep its connection, or close it."""
        self._in_use.discard(connection)
        if not connection.finish():
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.setdefault(_way(target, tls), []).append(connection)
        if self._sweeping is None:
            self._sweeping = loop.call_later(self._keep_alive_s, self._sweep)

    def drop_kept(self, target: Target, tls: ssl.SSLContext | None) -> None:
        """Close those kept on this way: one of them was found dead."""
        for connection in self._idle.pop(_way(target, tls), ()):
            connection.abort()

    def close(self) -> None:
        """Close every connection."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        for connection in [*self._in_use, *(one for idle in self._idle.values() for one in idle)]:
            connection.abort()
        self._in_use.clear()
        self._idle.clear()

    async def _open(self, target: Target, tls: ssl.SSLContext | None) -> Connection:
        loop = asyncio.get_running_loop()
        name = target.host if tls else None
        if self._socket:
            _, connection = await loop.create_unix_connection(
                self._new, self._socket, ssl=tls, server_hostname=name
            )
            return connection
        found = await loop.getaddrinfo(
            target.host, target.port, type=SOCK_STREAM, proto=IPPROTO_TCP
        )
        sock = await start_connection(found, happy_eyeballs_delay=NEXT_ADDRESS_S)
        try:
            _, connection = await loop.create_connection(
                self._new, sock=sock, ssl=tls, server_hostname=name
            )
        except BaseException:
            with suppress(OSError):
                sock.close()
            raise
        return connection

    def _new(self) -> Connection:
        return Connection(self._buffer)

    def _sweep(self) -> None:
        """Close those that were idle for too long, or that their upstream has closed."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._keep_alive_s
        for way, idle in list(self._idle.items()):
            young = []
            for connection in idle:
                if connection.idle_since > oldest and connection.is_usable:
                    young.append(connection)
                else:
                    connection.abort()
            if young:
                self._idle[way] = young
            else:
                del self._idle[way]
        again = self._keep_alive_s / 2 if self._idle else None
        self._sweeping = loop.call_later(again, self._sweep) if again else None


def _way(target: Target, tls: ssl.SSLContext | None) -> object:
    """Connections with the same may stand in for each other: none with another certificate."""
    return (target.host, target.port, tls)


def _why(fault: OSError | UnicodeError) -> str:
    """In the system's words: asyncio's repeat the address instead."""
    if isinstance(fault, OSError) and not isinstance(fault, gaierror):
        if fault.errno:
            return os.strerror(fault.errno)
        return fault.strerror or str(fault) or type(fault).__name__
    return getattr(fault, "strerror", None) or str(fault) or type(fault).__name__
