"""The way to an engine and back: place, send, read. One boundary, OpenAI's wire format.

A request whose connection fails before anything was sent goes to the next host; after that it is
never sent twice. A refusal of the engine's becomes one of ours, by its code.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from gateway.attached import AttachedServers
from gateway.catalog import Deployment
from gateway.errors import Unavailable, UpstreamFailed, UpstreamTimeout
from gateway.hosts import HostDirectory, Place
from gateway.prices import Usage
from gateway.schema import NOT_JSON, Ask
from gateway.sse import (
    BadFrame,
    Frame,
    Read,
    Splitter,
    foreign_reader,
    read_error,
    read_native,
    read_usage,
)
from gateway.transport import Broken, ConnectFailed, Reply
from gateway.upstream_errors import refusal_of
from runtime.capability import Signer
from runtime.sections import RelaySettings
from runtime.wire import REQUEST_ID

log = structlog.get_logger()

MAX_ERROR_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 64 * 1024 * 1024
DRAINING = "draining"
PATHS = {"chat": "/chat/completions", "completion": "/completions"}
ID_PREFIX = {"chat": "chatcmpl", "completion": "cmpl"}


@dataclass(slots=True)
class Errand:
    """One request for the relay. `host_id` is set once it has a place."""

    ask: Ask
    deployment: Deployment
    domain: str
    request_id: str
    host_id: str | None = None

    @property
    def param(self) -> str:
        """The field that a refusal of the engine's is about."""
        return "messages" if self.ask.operation == "chat" else "prompt"

    @property
    def answer_id(self) -> str:
        """The id that the client sees in the answer."""
        return f"{ID_PREFIX[self.ask.operation]}-{self.request_id.removeprefix('req_')}"


@dataclass(frozen=True, slots=True)
class Whole:
    """An unstreamed answer: the body for the client, and what it says of itself."""

    body: bytes
    usage: Usage | None
    finish_reason: str | None


class Relay:
    """Sends errands to hosts of the node, and to servers attached by URL."""

    def __init__(
        self,
        hosts: HostDirectory,
        attached: AttachedServers,
        signer: Signer,
        salt_key: bytes,
        settings: RelaySettings,
    ) -> None:
        self._hosts = hosts
        self._attached = attached
        self._signer = signer
        self._salt_key = salt_key
        self._settings = settings

    async def stream(self, errand: Errand) -> AsyncGenerator[list[Frame]]:
        """The answer's frames, as many at a time as came together. Raises Refusal.

        Ends after the frame that says done; a stream that stops before it is UpstreamFailed.
        """
        read = self._reader(errand)
        splitter = Splitter()
        try:
            async with self._reply(errand) as reply:
                chunks, limit_s = reply.chunks(), self._settings.first_byte_s
                while (chunk := await self._next(chunks, limit_s)) is not None:
                    limit_s = self._settings.idle_s  # a queue may be long; a running answer is not
                    frames = _until_done(read(event) for event in splitter.push(chunk))
                    yield frames
                    if frames and frames[-1].done:
                        return
                if (last := splitter.flush()) and read(last).done:
                    return
        except (Broken, BadFrame) as fault:
            raise _broken(errand, str(fault)) from None
        raise _broken(errand, "the stream ended before the answer did")

    async def whole(self, errand: Errand) -> Whole:
        """The unstreamed answer. Raises Refusal."""
        try:
            async with self._reply(errand) as reply, self._deadline(self._settings.first_byte_s):
                body = await reply.read(MAX_ANSWER_BYTES)
            return _read_whole(body, errand)
        except (Broken, BadFrame) as fault:
            raise _broken(errand, str(fault)) from None

    @asynccontextmanager
    async def _reply(self, errand: Errand) -> AsyncIterator[Reply]:
        """The engine's answer, its status 200. Raises Refusal."""
        avoid = ""
        while True:
            place = await self._place(errand.deployment, avoid)
            errand.host_id = place.host_id
            async with AsyncExitStack() as stack:
                try:
                    async with self._deadline(self._settings.first_byte_s):
                        exchange = place.transport.send(*self._request(errand, place))
                        reply = await stack.enter_async_context(exchange)
                except ConnectFailed as fault:
                    if errand.deployment.is_attached:
                        raise _unreachable(errand, str(fault)) from None
                    avoid = place.host_id
                    continue
                if reply.status != 200:
                    async with self._deadline(self._settings.idle_s):
                        code, message = await _read_refusal(errand, reply)
                    if code == DRAINING and not errand.deployment.is_attached:
                        avoid = place.host_id  # it has run nothing of this request
                        continue
                    raise refusal_of(code, message, reply.status, param=errand.param)
                yield reply
                return

    async def _place(self, deployment: Deployment, avoid: str) -> Place:
        if deployment.is_attached:
            return self._attached.place(deployment, self._settings.connect_s)
        return await self._hosts.place(deployment.id, self._settings.start_s, avoid=avoid)

    def _request(self, errand: Errand, place: Place) -> tuple[str, str, dict[str, str], bytes]:
        deployment, body = errand.deployment, errand.ask.engine_body()
        headers = {"content-type": "application/json", REQUEST_ID: errand.request_id}
        if deployment.is_attached:
            body |= self._foreign_fields(errand)
            if deployment.api_key:
                headers["authorization"] = f"Bearer {deployment.api_key}"
        else:
            token = self._signer.mint(errand.domain, deployment.id)
            headers["authorization"] = f"Bearer {token}"
        url = place.base_url + PATHS[errand.ask.operation]
        return "POST", url, headers, msgspec.json.encode(body)

    def _foreign_fields(self, errand: Errand) -> dict[str, Any]:
        """What another server is told beside the client's own fields; the operator's win."""
        deployment, ask = errand.deployment, errand.ask
        fields: dict[str, Any] = {
            "model": deployment.upstream_model,
            "max_tokens": ask.max_tokens or deployment.default_max_tokens,
        }
        if ask.stream:
            fields["stream_options"] = {"include_usage": True}
        if deployment.cache_salt:
            salt = hmac.new(self._salt_key, errand.domain.encode(), hashlib.sha256)
            fields["cache_salt"] = salt.hexdigest()
        return fields | dict(deployment.extra_body)

    def _reader(self, errand: Errand) -> Read:
        if errand.deployment.is_attached:
            return foreign_reader(errand.answer_id, errand.deployment.id)
        return read_native

    async def _next(self, chunks: AsyncIterator[bytes], limit_s: float) -> bytes | None:
        try:  # not by _deadline: this runs for every chunk
            async with asyncio.timeout(limit_s):
                return await anext(chunks, None)
        except TimeoutError:
            raise _silent(limit_s) from None

    @asynccontextmanager
    async def _deadline(self, seconds: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise _silent(seconds) from None


def _silent(seconds: float) -> UpstreamTimeout:
    return UpstreamTimeout(f"the engine was silent for {seconds:g} s")


def _until_done(frames: Iterable[Frame]) -> list[Frame]:
    """The frames up to the one that says done; what comes after it means nothing."""
    found = []
    for frame in frames:
        if frame.error is not None:
            raise refusal_of(*frame.error)
        found.append(frame)
        if frame.done:
            break
    return found


def _read_whole(body: bytes, errand: Errand) -> Whole:
    try:
        answer: dict[str, Any] = msgspec.json.decode(body)
        finish = answer["choices"][0]["finish_reason"]
    except (*NOT_JSON, KeyError, IndexError, TypeError):
        raise BadFrame("not a completion") from None
    if not isinstance(finish, str | None):
        raise BadFrame("a finish reason that isn't text")
    if errand.deployment.is_attached:
        body = msgspec.json.encode(_ours(answer, errand))
    return Whole(body, read_usage(answer.get("usage")), finish)


ANSWER_FIELDS = ("object", "created", "choices", "usage")


def _ours(answer: dict[str, Any], errand: Errand) -> dict[str, Any]:
    """Another server's answer with our id and model name, and OpenAI's fields alone."""
    ours = {"id": errand.answer_id, "model": errand.deployment.id}
    return ours | {name: answer[name] for name in ANSWER_FIELDS if name in answer}


def _broken(errand: Errand, reason: str) -> UpstreamFailed:
    log.warning("upstream_broke", request_id=errand.request_id, host=errand.host_id, reason=reason)
    return UpstreamFailed("the engine's answer broke off; try again")


def _unreachable(errand: Errand, reason: str) -> Unavailable:
    log.warning(
        "upstream_unreachable", request_id=errand.request_id, host=errand.host_id, reason=reason
    )
    return Unavailable("the model's engine can't be reached just now; try again")


async def _read_refusal(errand: Errand, reply: Reply) -> tuple[str, str]:
    body = await reply.read(MAX_ERROR_BYTES)
    try:
        found = msgspec.json.decode(body)
    except NOT_JSON:
        found = None
    error = found.get("error") if isinstance(found, dict) else None
    # some servers write the error's fields at the top, without an `error` around them
    code, message = read_error(error or found or {})
    log.warning(  # without the message, which may quote the prompt
        "upstream_refused",
        request_id=errand.request_id,
        host=errand.host_id,
        status=reply.status,
        code=code[:64],
    )
    return code, message
