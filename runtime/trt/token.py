"""One real token asked of a server that we started: the only proof that it answers.

Its /health may say that all is well while nothing ever comes, and its error for a fault of its own
is a 400 as well. What we ask is right; so whatever isn't a token is the server's fault.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from msgspec import MsgspecError, json

from engines.api import KvIntegrityAbort
from runtime.node.probe import NO_TLS
from runtime.trt.watch import Answer, Heard

FULL = 429


class Asker:
    """Asks the server at `url` (its /v1) for a token of `model`.

    The salt is the launcher's own: it finds no tenant's prefix, and leaves none to them.
    """

    def __init__(self, url: str, model: str, salt: str) -> None:
        self.body = {
            "model": model,
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 1,
            "temperature": 0,
            "cache_salt": salt,
        }
        # No connection is kept: an end in order waits until nobody holds one.
        limits = httpx.Limits(max_keepalive_connections=0)
        transport = httpx.AsyncHTTPTransport(verify=NO_TLS, limits=limits)
        self._client = httpx.AsyncClient(base_url=url, transport=transport, timeout=None)  # noqa: S113

    async def ask(self, within_s: float) -> Answer:
        """What came of it, in this time at most."""
        try:
            async with asyncio.timeout(within_s):
                reply = await self._client.post("/chat/completions", json=self.body)
        except TimeoutError:
            return Answer(Heard.SILENCE, f"no token in {within_s:g} s")
        except httpx.ConnectError:
            return Answer(Heard.FAULT, "no connection", is_reached=False)
        except httpx.HTTPError as fault:
            return Answer(Heard.FAULT, f"no answer ({type(fault).__name__})")
        if reply.status_code == FULL:
            return Answer(Heard.FULL, "it is full")
        if reply.status_code != 200:
            return Answer(Heard.FAULT, f"it answers {reply.status_code}")
        return _judged(reply.content)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._client.aclose()


def _judged(body: bytes) -> Answer:
    """Whether an answer has a token. Its text may be empty: a token need not be a character."""
    try:
        answer: dict[str, Any] = json.decode(body)
        choice = answer["choices"][0]
        text = choice["message"].get("content")
        tokens = (answer.get("usage") or {}).get("completion_tokens")
    except (MsgspecError, LookupError, TypeError, AttributeError):
        return Answer(Heard.FAULT, "it answers what is no completion")
    if choice.get("stop_reason") == KvIntegrityAbort.code:
        return Answer(Heard.FAULT, "its guard stops what it answers")
    if tokens == 0 or (tokens is None and not text):
        return Answer(Heard.FAULT, "it answers without a token")
    return Answer(Heard.TOKEN)
