"""The plain twin of a gateway: raw ASGI that forwards bytes with aiohttp, and nothing else.

No keys, no ledger, no look at what passes. For `granian benchmarks.passthrough:app`, the upstream's
base URL in BENCH_UPSTREAM.
"""

from __future__ import annotations

import os

import aiohttp
from starlette.types import Receive, Scope, Send

UPSTREAM = os.environ.get("BENCH_UPSTREAM", "").removesuffix("/v1")
_sessions: list[aiohttp.ClientSession] = []


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Forward one request."""
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = {"content-type": "application/json"}
    async with _session().request(
        scope["method"], UPSTREAM + scope["path"], data=body, headers=headers
    ) as reply:
        kind = reply.headers["content-type"].encode()
        head = [(b"content-type", kind)]
        await send({"type": "http.response.start", "status": reply.status, "headers": head})
        async for chunk in reply.content.iter_any():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _session() -> aiohttp.ClientSession:
    if not _sessions:  # made inside the loop it belongs to
        _sessions.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
    return _sessions[0]
