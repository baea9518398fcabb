"""HTTP around one engine: what a host answers on its socket.

`/v1/*` needs the gateway's capability and takes the request's domain from it alone. The rest is in
`control`; the socket's mode (0600) keeps others out.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from engines.api import ContextLengthExceeded, Engine, EngineError, Request, RequestRefused
from runtime.asgi import while_connected
from runtime.capability import CapabilityRefused, Verifier
from runtime.host.answer import Answer, Piece
from runtime.host.control import Control
from runtime.host.engine_thread import EngineThread
from runtime.host.wire import (
    AnswerEncoder,
    HostRequest,
    decode_request,
    encode,
    error_object,
    usage_object,
)
from runtime.wire import DONE, REQUEST_ID, prompt_comment

# of an engine's errors; else 500
STATUS = {"kv_integrity_abort": 503, "engine_failed": 503, "draining": 503}
LARGE_CHARS = 64 * 1024  # texts of this size are encoded one at a time
JSON = [(b"content-type", b"application/json")]
SSE = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]


class Gone(Exception):
    """The caller left before its request was in."""


class Host:
    """One engine and what its HTTP face needs to know. `faults`: see Control."""

    def __init__(
        self,
        model: str,
        engine: Engine,
        thread: EngineThread,
        verifier: Verifier,
        max_tokens: int,
        *,
        faults: str = "",
    ) -> None:
        self.model = model
        self.engine = engine
        self.thread = thread
        self.verifier = verifier
        self.default_max_tokens = max_tokens
        self.control = Control(model, thread, faults)
        self._one_large = asyncio.Semaphore(1)

    def asgi(self) -> ASGIApp:
        """The whole app. `/v1` is raw ASGI, past any middleware: it is the hot path."""
        control = Starlette(routes=self.control.routes())

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            is_ours = scope["type"] == "http" and scope["path"].startswith("/v1/")
            await (self.infer if is_ours else control)(scope, receive, send)

        return app

    async def infer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/chat/completions and /v1/completions."""
        with self.control.traffic:
            await self._infer(scope, receive, send)

    async def _infer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix("/v1")
        if path not in ("/chat/completions", "/completions") or scope["method"] != "POST":
            await _send_json(send, 404, error_object("not_found", "no such route on a host"))
            return
        headers = dict(scope["headers"])
        try:
            domain = self.verifier.domain(_bearer(headers))
            wire = decode_request(await _body(receive))
        except Gone:
            return
        except CapabilityRefused as fault:
            message = f"the capability was refused: {fault}"
            await _send_json(send, 401, error_object("capability_refused", message))
        except (msgspec.ValidationError, msgspec.DecodeError) as fault:
            await _send_json(send, 400, error_object("invalid_request", str(fault)))
        else:
            name = headers.get(REQUEST_ID.encode(), b"").decode() or secrets.token_hex(8)
            chat = path == "/chat/completions"
            await while_connected(self._answer(wire, domain, name, chat, send), receive)

    async def _answer(
        self, wire: HostRequest, domain: str, name: str, chat: bool, send: Send
    ) -> None:
        """Run the request, as a stream or whole."""
        try:
            if self.control.draining:
                await _send_json(send, 503, error_object("draining", "this host is draining"))
                return
            ask = await self._admit(wire, domain, name, chat)
            await self._run(ask, send)
        except EngineError as fault:
            status = 400 if isinstance(fault, RequestRefused) else STATUS.get(fault.code, 500)
            await _send_json(send, status, error_object(fault.code, str(fault)))

    async def _admit(self, wire: HostRequest, domain: str, name: str, chat: bool) -> Admitted:
        """Everything that can refuse a request without the engine's help."""
        wanted, other = (wire.messages, wire.prompt) if chat else (wire.prompt, wire.messages)
        if wanted is None or other is not None:
            raise RequestRefused("a chat takes `messages`, a completion takes `prompt`")
        request = self._request(wire, await self._encode(wire), domain, name)
        encoder = AnswerEncoder(
            chat=chat,
            answer_id=f"{'chatcmpl' if chat else 'cmpl'}-{name.removeprefix('req_')}",
            model=wire.model,
            created=int(time.time()),
        )
        return Admitted(wire, request, encoder)

    async def _encode(self, wire: HostRequest) -> list[int]:
        """The prompt's ids. What can't fit is refused unread; large texts go one at a time."""
        if isinstance(wire.prompt, list):
            return wire.prompt
        size = wire.num_chars()
        fewest = size // self.engine.tokenizer.longest_token_chars
        if fewest > self.engine.max_context_tokens:
            raise self._too_long(f"at least {fewest}")
        if size < LARGE_CHARS:
            return await asyncio.to_thread(self._encode_text, wire)
        async with self._one_large:
            return await asyncio.to_thread(self._encode_text, wire)

    def _encode_text(self, wire: HostRequest) -> list[int]:
        tokenizer = self.engine.tokenizer
        if wire.messages is not None:
            return tokenizer.encode_chat(wire.turns())
        return tokenizer.encode_prompt(str(wire.prompt))

    def _request(self, wire: HostRequest, prompt: list[int], domain: str, name: str) -> Request:
        """The engine's request. An answer is cut to what the context still holds."""
        room = self.engine.max_context_tokens - len(prompt)
        if room < 1:
            raise self._too_long(str(len(prompt)))
        asked = wire.max_tokens or self.default_max_tokens
        seed = secrets.randbits(63) if wire.seed is None else wire.seed
        return Request(name, domain, tuple(prompt), wire.sampling(min(asked, room), seed))

    def _too_long(self, count: str) -> ContextLengthExceeded:
        limit = self.engine.max_context_tokens
        return ContextLengthExceeded(
            f"the prompt has {count} tokens; this model holds {limit}, answer included"
        )

    async def _run(self, ask: Admitted, send: Send) -> None:
        try:
            await self.thread.submit(ask.request)
            await (self._stream(ask, send) if ask.wire.stream else self._whole(ask, send))
        finally:
            self.thread.abort(ask.request.id)

    async def _stream(self, ask: Admitted, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": SSE})
        try:
            async with aclosing(self._pieces(ask)) as pieces:
                async for some in pieces:
                    frames = b"" if ask.opened else self._opening(ask)
                    for piece in some:
                        frames += ask.encoder.piece(piece)
                    if frames:
                        await _send_part(send, frames)
        except EngineError as fault:
            frame = b"data: " + encode(error_object(fault.code, str(fault))) + b"\n\n"
            await send({"type": "http.response.body", "body": frame})
            return
        await send({"type": "http.response.body", "body": ask.encoder.usage(ask.usage()) + DONE})

    def _opening(self, ask: Admitted) -> bytes:
        ask.opened = True
        return prompt_comment(len(ask.request.prompt), ask.cached) + ask.encoder.opening()

    async def _whole(self, ask: Admitted, send: Send) -> None:
        text, finish = "", "stop"
        async with aclosing(self._pieces(ask)) as pieces:
            async for some in pieces:
                text += "".join(piece.text for piece in some)
                finish = some[-1].finish.value if some[-1].finish else finish
        await _send(send, 200, JSON, ask.encoder.whole(text, finish, ask.usage()))

    async def _pieces(self, ask: Admitted) -> AsyncGenerator[list[Piece]]:
        """The answer's pieces to its end, be it the engine's or a stop string's.

        Those that are there at once come at once, never none.
        """
        answer = Answer(self.engine.tokenizer.decoder(), ask.wire.stop)
        finish = None
        while finish is None:
            pieces: list[Piece] = []
            for output in await self.thread.outputs(ask.request.id):
                if output.error is not None and pieces:  # what came before it is still good
                    yield pieces
                    pieces = []
                if output.cached_tokens is not None:
                    ask.cached = output.cached_tokens
                if output.token_ids or output.finish is not None:
                    pieces.append(answer.push(output))
                    finish = pieces[-1].finish
                if finish is not None:
                    break
            if pieces:
                ask.output_tokens = pieces[-1].output_tokens
                yield pieces


@dataclasses.dataclass(slots=True)
class Admitted:
    """One admitted request and its running counts."""

    wire: HostRequest
    request: Request
    encoder: AnswerEncoder
    cached: int = 0
    output_tokens: int = 0
    opened: bool = False

    def usage(self) -> dict[str, object]:
        """OpenAI's usage object as of now."""
        return usage_object(len(self.request.prompt), self.cached, self.output_tokens)


def _bearer(headers: dict[bytes, bytes]) -> str:
    scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise CapabilityRefused("no bearer token")
    return token


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_json(send: Send, status: int, body: object) -> None:
    await _send(send, status, JSON, encode(body))


async def _send_part(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
