"""Small questions to a host or a node over its unix socket."""

from __future__ import annotations

import ssl

import httpx
from msgspec import Struct, json

from engines.api import Stats

STATS_S = 2.0  # it waits for the engine's step; a health check is worth more
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # httpx would load the system's authorities


class Health(Struct, frozen=True, kw_only=True):
    """What a host says of itself."""

    state: str  # ready, draining, failed
    retirement: str = ""  # why its engine takes no new request, and wants to be replaced
    integrity_aborts: int = 0  # requests that a check of their pages has stopped
    in_flight: int = 0  # answers that aren't ended
    waiting: int = 0  # of them, those that the engine hasn't begun
    idle_s: float = 0.0  # since when it has had none


def client(socket: str, timeout_s: float, *, keep_alive: bool = True) -> httpx.AsyncClient:
    """A client of whatever listens on `socket`."""
    limits = httpx.Limits(max_keepalive_connections=None if keep_alive else 0)
    transport = httpx.AsyncHTTPTransport(uds=socket, limits=limits, verify=NO_TLS)
    return httpx.AsyncClient(transport=transport, base_url="http://host", timeout=timeout_s)


async def health(host: httpx.AsyncClient) -> Health | None:
    """A host's health; None if it says that it can't answer. Raises HTTPError if it is silent."""
    answer = await host.get("/health")
    return json.decode(answer.content, type=Health) if answer.status_code == 200 else None


async def stats(host: httpx.AsyncClient) -> Stats:
    """A host's counters. Raises HTTPError or MsgspecError if it can't tell them soon."""
    answer = await host.get("/stats", timeout=STATS_S)
    answer.raise_for_status()
    return json.decode(answer.content, type=Stats)
