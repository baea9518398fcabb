"""How a host ends without losing a request.

What runs may end. Meanwhile it still listens: who has yet to hear that it drains is refused, and
goes elsewhere. Gateways that know let go of their connections; when the last one has, nobody can
be writing to one. Then its socket's name goes, and who comes later finds nobody.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress

from uvicorn import Server

LINGER_S = 2.0  # for connections that are held, and never used again
ACCEPT_S = 0.05  # for those that came before the name went
LOOK_S = 0.02


class Traffic:
    """The requests that are being answered, from their first byte to their last.

    A request is `with traffic:`; how many there are, and since when there is none.
    """

    def __init__(self) -> None:
        self.running = 0
        self._idle_since = time.monotonic()

    def __enter__(self) -> None:
        self.running += 1

    def __exit__(self, *_: object) -> None:
        self.running -= 1
        self._idle_since = time.monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds since the last one ended."""
        return 0.0 if self.running else time.monotonic() - self._idle_since


async def drained(server: Server, socket: str, traffic: Traffic) -> None:
    """Returns once nothing runs and nothing is on its way; the connections are closed then."""
    await _settled(server, traffic)
    with suppress(FileNotFoundError):
        os.unlink(socket)
    await asyncio.sleep(ACCEPT_S)
    await _settled(server, traffic)
    for connection in list(server.server_state.connections):
        connection.shutdown()


async def _settled(server: Server, traffic: Traffic) -> None:
    """Until nobody holds a connection, or all that are held have long been idle."""
    began = time.monotonic()
    while server.server_state.connections or traffic.running:
        if min(traffic.idle_s, time.monotonic() - began) > LINGER_S:
            return
        await asyncio.sleep(LOOK_S)
