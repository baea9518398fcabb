"""The gateway that one would write first: Starlette and httpx, as their manuals show them.

For `uvicorn benchmarks.naive:app`, the upstream's base URL in BENCH_UPSTREAM.
"""

from __future__ import annotations

import os

import httpx
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

UPSTREAM = os.environ.get("BENCH_UPSTREAM", "").removesuffix("/v1")
client = httpx.AsyncClient(timeout=120)


async def forward(request: Request) -> Response:
    """Forward one request, streaming its answer."""
    sent = client.build_request(
        request.method,
        UPSTREAM + request.url.path,
        content=await request.body(),
        headers={"content-type": "application/json"},
    )
    reply = await client.send(sent, stream=True)
    return StreamingResponse(
        reply.aiter_raw(),
        status_code=reply.status_code,
        media_type=reply.headers["content-type"],
        background=BackgroundTask(reply.aclose),
    )


app = Starlette(routes=[Route("/{path:path}", forward, methods=["GET", "POST"])])
