"""The server under test, called as the gateway will call it: for two tenants, "a" and "b"."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from engines.api import KvIntegrityAbort
from gateway.relay.sse import Splitter
from gateway.relay.transport import Broken, ConnectFailed, Reply, Transport
from gateway.schema import NOT_JSON
from runtime.config.attached import KINDS, Cache

CONNECT_S = 10.0
PATIENCE_S = 300.0
MAX_BYTES = 16 * 1024 * 1024
JSON = {"content-type": "application/json"}
UNSALTED = "; where it takes no salt, say `--cache off`, or `--cache shared-accepted`"


class Unusable(Exception):
    """The server can't be tried at all. The message says why, and what to do."""


class Wrong(Exception):
    """An answer that isn't one. The message says how."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where it is, and how tenants are told apart there: by salts, or by two keys."""

    url: str  # of its /v1
    kind: str = "openai"
    cache: Cache = ""
    model: str = ""  # "": the first that it lists
    key: str = field(default="", repr=False)
    second_key: str = field(default="", repr=False)  # tenant b's


@dataclass(slots=True)
class Said:
    """An answer: its text, its usage if it told any, why it ended, and how long that took."""

    text: str
    usage: dict[str, Any]
    finish: str
    seconds: float
    num_pieces: int = 0  # events with text, of a stream

    @property
    def cached(self) -> int | None:
        """Prompt tokens that it says it had cached; None if it doesn't say."""
        details = self.usage.get("prompt_tokens_details")
        found = details.get("cached_tokens") if isinstance(details, dict) else None
        return found if isinstance(found, int) else None


class Backend:
    """Calls it. `operation` is what it takes: chats, or plain prompts."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.url = target.url.rstrip("/")
        self.model = target.model
        self.operation: Literal["chat", "completion"] = "chat"
        self._transport = Transport(connect_s=CONNECT_S, keep_alive_s=0.0)
        self._salts = {tenant: secrets.token_hex(32) for tenant in "ab"}

    async def discover(self) -> None:
        """Find a model, and whether it takes chats. Raises Unusable."""
        try:
            if not self.model:
                self.model = await self._first_model()
            status, body = await self.post(self.body("hi", max_tokens=1))
            if 400 <= status < 500 and status not in (401, 403, 429):
                self.operation = "completion"
                status, body = await self.post(self.body("hi", max_tokens=1))
        except (ConnectFailed, Broken, TimeoutError) as fault:
            raise Unusable(
                f"{self.url} can't be asked: {str(fault) or 'no answer in time'}"
            ) from None
        if status != 200:
            raise Unusable(
                f"{self.url} answers {status} to a request for a token: {_shown(body)}"
                + (UNSALTED if b"cache_salt" in body else "")
            )

    async def _first_model(self) -> str:
        async with self.open("GET", f"{self.url}/models", None) as reply:
            status, body = reply.status, await reply.read(MAX_BYTES)
        if status != 200:
            told = f"{self.url}/models answers {status}: {_shown(body)}"
            raise Unusable(f"{told}; {_what_may_help(status)}")
        found = _decoded(body)
        try:
            return str(found["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise Unusable(f"{self.url}/models lists no model; name one with --model") from None

    def body(
        self, prompt: str, *, max_tokens: int, tenant: str = "a", stream: bool = False, **more: Any
    ) -> dict[str, Any]:
        """A request, with what keeps the tenant's cache apart."""
        habits = KINDS[self.target.kind]
        cache = self.target.cache or habits.cache or "salted"
        asked: dict[str, Any] = (
            {"messages": [{"role": "user", "content": prompt}]}
            if self.operation == "chat"
            else {"prompt": prompt}
        )
        fields = {"model": self.model, "max_tokens": max_tokens, "temperature": 0} | asked
        if stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        if not self.target.second_key:
            if cache == "salted" and self.operation in habits.salted:
                fields |= habits.salting(self._salts[tenant], {})
            elif cache == "off":
                fields |= habits.uncached
        return fields | more

    @asynccontextmanager
    async def open(
        self, method: str, url: str, body: dict[str, Any] | None, tenant: str = "a"
    ) -> AsyncIterator[Reply]:
        """Its answer, whatever the status. Raises ConnectFailed, Broken, TimeoutError."""
        key = self.target.key if tenant == "a" else self.target.second_key or self.target.key
        headers = JSON | ({"authorization": f"Bearer {key}"} if key else {})
        data = None if body is None else msgspec.json.encode(body)
        async with asyncio.timeout(PATIENCE_S):
            async with self._transport.send(method, url, headers, data) as reply:
                yield reply

    @property
    def path(self) -> str:
        """The URL of what it takes."""
        paths = {"chat": "/chat/completions", "completion": "/completions"}
        return self.url + paths[self.operation]

    async def post(self, body: dict[str, Any], tenant: str = "a") -> tuple[int, bytes]:
        """Status and body of an unstreamed answer."""
        async with self.open("POST", self.path, body, tenant) as reply:
            return reply.status, await reply.read(MAX_BYTES)

    async def whole(self, prompt: str, *, tenant: str = "a", **more: Any) -> Said:
        """An unstreamed answer. Raises Wrong."""
        began = time.monotonic()
        status, body = await self.post(self.body(prompt, tenant=tenant, **more), tenant)
        seconds = time.monotonic() - began
        if status != 200:
            raise Wrong(f"it answers {status}: {_shown(body)}")
        answer = _decoded(body)
        try:
            choice = answer["choices"][0]
            _check_guard(choice)
            text = choice["message"]["content"] if self.operation == "chat" else choice["text"]
            return Said(
                text or "", answer.get("usage") or {}, str(choice["finish_reason"]), seconds
            )
        except (KeyError, IndexError, TypeError):
            raise Wrong(f"an answer of another shape: {_shown(body)}") from None

    async def streamed(self, prompt: str, *, tenant: str = "a", **more: Any) -> Said:
        """A streamed answer, read to its end. Raises Wrong."""
        said, began = Said("", {}, "", 0.0), time.monotonic()
        body, is_done = self.body(prompt, tenant=tenant, stream=True, **more), False
        splitter = Splitter()
        async with self.open("POST", self.path, body, tenant) as reply:
            if reply.status != 200:
                raise Wrong(f"it answers {reply.status} to a stream")
            while (chunk := await reply.chunk()) is not None:
                for event in splitter.push(chunk):
                    is_done |= event.strip() == b"data: [DONE]"
                    self._take(event, said)
        if not is_done:
            raise Wrong("a stream that ends without [DONE]")
        said.seconds = time.monotonic() - began
        return said

    def _take(self, event: bytes, said: Said) -> None:
        if not event.startswith(b"data:") or event.strip() == b"data: [DONE]":
            return
        chunk = _decoded(event[5:])
        if not isinstance(chunk, dict):
            raise Wrong(f"an event of another shape: {event[:200]!r}")
        said.usage = chunk.get("usage") or said.usage
        for choice in chunk.get("choices") or ():
            _check_guard(choice)
            delta = choice.get("delta") or {}
            text = choice.get("text") or delta.get("content") or ""
            said.text += text
            said.num_pieces += bool(text)
            said.finish = choice.get("finish_reason") or said.finish

    async def aclose(self) -> None:
        """Close its connections."""
        await self._transport.aclose()


def _check_guard(choice: dict[str, Any]) -> None:
    if choice.get("stop_reason") == KvIntegrityAbort.code:
        raise Wrong("its guard stopped an answer: a page of its cache was another's")


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except NOT_JSON:
        raise Wrong(f"it isn't JSON: {body[:200]!r}") from None


def _what_may_help(status: int) -> str:
    if status == 404:
        return "is that its /v1? Or name the model with --model"
    return "name the variable of its key with --api-key-env, or the model with --model"


def _shown(body: bytes) -> str:
    """The beginning of an answer, in a line."""
    return " ".join(body[:200].decode(errors="replace").split())
