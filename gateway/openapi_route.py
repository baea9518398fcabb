"""GET /v1/openapi.json: what `/v1` takes and gives. Nobody's secret, so no key is asked for."""

from __future__ import annotations

import functools

from gateway.asgi import Call, encode
from gateway.env import Env
from gateway.etags import send_if_changed
from gateway.query import query_of


async def openapi(_: Env, call: Call) -> None:
    """The document, the same for everybody."""
    query_of(call, ())
    await send_if_changed(call, _encoded(), [(b"cache-control", b"no-cache")])


@functools.cache
def _encoded() -> bytes:
    """Made when it is first asked for: a start doesn't wait for it, nor for what makes it."""
    from gateway.openapi.public import public_document

    return encode(public_document())
