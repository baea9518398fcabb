"""Small questions to a host or a node over its unix socket."""

from __future__ import annotations

import httpx


def client(socket: str, timeout_s: float) -> httpx.AsyncClient:
    """A client of whatever listens on `socket`."""
    transport = httpx.AsyncHTTPTransport(uds=socket)
    return httpx.AsyncClient(transport=transport, base_url="http://host", timeout=timeout_s)


async def healthy(host: httpx.AsyncClient) -> bool:
    """Whether a host says that it can answer. Raises httpx.HTTPError if it says nothing."""
    return (await host.get("/health")).status_code == 200
