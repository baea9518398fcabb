"""HTTP around one engine: what a host answers on its socket.

`/v1/*` needs the gateway's capability and takes the request's domain from it alone. The rest is
the node's control API; the socket's mode (0600) keeps others out.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from engines.api import ContextLengthExceeded, Engine, EngineError, Request, RequestRefused
from runtime.answer import Answer, Piece
from runtime.capability import CapabilityRefused, Verifier
from runtime.engine_thread import EngineThread
from runtime.host_wire import (
    AnswerEncoder,
    HostRequest,
    decode_request,
    encode,
    error_object,
    usage_object,
)
from runtime.wire import DONE, REQUEST_ID, prompt_comment

log = structlog.get_logger()

STATUS = {"kv_integrity_abort": 503, "engine_failed": 503, "draining": 503, "engine_error": 500}
JSON = [(b"content-type", b"application/json")]
SSE = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]


class Gone(Exception):
    """The caller left before its request was in."""


class Host:
    """One engine and what its HTTP face needs to know."""

    def __init__(
        self, model: str, engine: Engine, thread: EngineThread, verifier: Verifier, max_tokens: int
    ) -> None:
        self.model = model
        self.engine = engine
        self.thread = thread
        self.verifier = verifier
        self.default_max_tokens = max_tokens
        self.draining = False

    def asgi(self) -> Starlette:
        """The whole app. `/v1` is raw ASGI: it is the hot path."""
        return Starlette(
            routes=[
                Route("/health", self.health),
                Route("/stats", self.stats),
                Route("/drain", self.drain, methods=["POST"]),
                Mount("/v1", self.infer),
            ]
        )

    async def health(self, _: HttpRequest) -> Response:
        """200 while the engine can answer."""
        if self.thread.failed.is_set():
            return JSONResponse({"state": "failed"}, 503)
        return JSONResponse({"state": "draining" if self.draining else "ready"})

    async def stats(self, _: HttpRequest) -> Response:
        """The engine's counters."""
        return JSONResponse(dataclasses.asdict(await self.thread.stats()))

    async def drain(self, _: HttpRequest) -> Response:
        """Take no new request; those that run go on."""
        self.draining = True
        return JSONResponse({"in_flight": self.thread.in_flight})

    async def infer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/chat/completions and /v1/completions."""
        path = scope["path"].removeprefix("/v1")
        if path not in ("/chat/completions", "/completions") or scope["method"] != "POST":
            await _send_json(send, 404, error_object("not_found", "no such route on a host"))
            return
        try:
            ask = await self._admit(scope, receive, chat=path == "/chat/completions")
        except Gone:
            return
        except CapabilityRefused as fault:
            message = f"the capability was refused: {fault}"
            await _send_json(send, 401, error_object("capability_refused", message))
        except (msgspec.ValidationError, msgspec.DecodeError, RequestRefused) as fault:
            code = fault.code if isinstance(fault, EngineError) else "invalid_request"
            await _send_json(send, 400, error_object(code, str(fault)))
        else:
            await self._answer(ask, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, *, chat: bool) -> Admitted:
        """Everything that can refuse a request without the engine's help."""
        headers = dict(scope["headers"])
        domain = self.verifier.domain(_bearer(headers))
        wire = decode_request(await _body(receive))
        wanted, other = (wire.messages, wire.prompt) if chat else (wire.prompt, wire.messages)
        if wanted is None or other is not None:
            raise RequestRefused("a chat takes `messages`, a completion takes `prompt`")
        request_id = headers.get(REQUEST_ID.encode(), b"").decode() or secrets.token_hex(8)
        prompt = await asyncio.to_thread(self._encode, wire)
        request = self._request(wire, prompt, domain, request_id)
        encoder = AnswerEncoder(
            chat=chat,
            answer_id=f"{'chatcmpl' if chat else 'cmpl'}-{request_id.removeprefix('req_')}",
            model=wire.model,
            created=int(time.time()),
        )
        return Admitted(wire, request, encoder)

    def _encode(self, wire: HostRequest) -> list[int]:
        if wire.messages is not None:
            return self.engine.tokenizer.encode_chat(wire.turns())
        if isinstance(wire.prompt, str):
            return self.engine.tokenizer.encode(wire.prompt)
        return wire.prompt or []

    def _request(self, wire: HostRequest, prompt: list[int], domain: str, name: str) -> Request:
        """The engine's request. An answer is cut to what the context still holds."""
        limit = self.engine.max_context_tokens
        room = limit - len(prompt)
        if room < 1:
            raise ContextLengthExceeded(
                f"the prompt has {len(prompt)} tokens; this model holds {limit}, answer included"
            )
        asked = wire.max_tokens or self.default_max_tokens
        seed = secrets.randbits(63) if wire.seed is None else wire.seed
        return Request(name, domain, tuple(prompt), wire.sampling(min(asked, room), seed))

    async def _answer(self, ask: Admitted, receive: Receive, send: Send) -> None:
        """Run the request, as a stream or whole; a client that leaves aborts it."""
        work = asyncio.ensure_future(self._run(ask, send))
        gone = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            gone.cancel()
            await asyncio.wait((work, gone))
        if not work.cancelled() and (fault := work.exception()):
            raise fault

    async def _run(self, ask: Admitted, send: Send) -> None:
        try:
            if self.draining:
                await _send_json(send, 503, error_object("draining", "this host is draining"))
                return
            await self.thread.submit(ask.request)
            await (self._stream(ask, send) if ask.wire.stream else self._whole(ask, send))
        except EngineError as fault:
            status = 400 if isinstance(fault, RequestRefused) else STATUS.get(fault.code, 500)
            await _send_json(send, status, error_object(fault.code, str(fault)))
        finally:
            self.thread.abort(ask.request.id)

    async def _stream(self, ask: Admitted, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": SSE})
        try:
            async with aclosing(self._pieces(ask)) as pieces:
                async for piece in pieces:
                    if ask.opened:
                        frames = ask.encoder.piece(piece)
                    else:
                        frames = self._opening(ask) + ask.encoder.piece(piece)
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
            async for piece in pieces:
                text += piece.text
                finish = piece.finish.value if piece.finish else finish
        await _send(send, 200, JSON, ask.encoder.whole(text, finish, ask.usage()))

    async def _pieces(self, ask: Admitted) -> AsyncGenerator[Piece]:
        """The answer's pieces to its end, be it the engine's or a stop string's."""
        answer = Answer(self.engine.tokenizer.decoder(), ask.wire.stop)
        async with aclosing(self.thread.outputs(ask.request.id)) as outputs:
            async for output in outputs:
                if output.cached_tokens is not None:
                    ask.cached = output.cached_tokens
                if not output.token_ids and output.finish is None:
                    continue
                piece = answer.push(output)
                ask.output_tokens = piece.output_tokens
                yield piece
                if piece.finish is not None:
                    return


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


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_json(send: Send, status: int, body: object) -> None:
    await _send(send, status, JSON, encode(body))


async def _send_part(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
