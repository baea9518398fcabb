"""The way to an engine and back: place, send, read. One boundary, OpenAI's wire format.

A request whose connection fails before anything was sent goes to the next host; after that it is
never sent twice. A refusal of the engine's becomes one of ours, by its code.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

import msgspec
import structlog

from gateway.catalog.catalog import Deployment
from gateway.errors import Unavailable, UpstreamFailed, UpstreamTimeout
from gateway.relay.attached import AttachedServers
from gateway.relay.extra_fields import IN_EXTRA_BODY, REMEDIES, extra_fields, refused_field
from gateway.relay.place import Place
from gateway.relay.placement import Line, Placement, Turn
from gateway.relay.sse import (
    BadFrame,
    Frame,
    Read,
    Splitter,
    foreign_reader,
    read_error,
    read_native,
)
from gateway.relay.transport import Broken, ConnectFailed, Reply
from gateway.relay.upstream_errors import refusal_of
from gateway.relay.whole import Whole, read_whole
from gateway.schema import NOT_JSON, Ask
from runtime.capability import Signer
from runtime.config.sections import RelaySettings
from runtime.wire import REQUEST_ID

log = structlog.get_logger()

MAX_ERROR_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 64 * 1024 * 1024
DRAINING = "draining"
FOR_THE_BODY = (400, 413, 422)  # statuses by which a server refuses what it was sent
TURN_TOKENS = 16  # a chat template's, at most, around each message
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
    def tokens(self) -> int:
        """No fewer than it takes, known without a tokenizer: characters, and what it may answer."""
        ask = self.ask
        size = ask.max_tokens or self.deployment.default_max_tokens
        for turn in ask.messages or ():
            size += len(turn.content) + TURN_TOKENS
        return size + len(ask.prompt or ())

    @property
    def param(self) -> str:
        """The field that a refusal of the engine's is about."""
        return "messages" if self.ask.operation == "chat" else "prompt"

    @property
    def answer_id(self) -> str:
        """The id that the client sees in the answer."""
        return f"{ID_PREFIX[self.ask.operation]}-{self.request_id.removeprefix('req_')}"

    @property
    def names(self) -> dict[str, str]:
        """What another server's answer must say: our id, and our name of the model."""
        return {"id": self.answer_id, "model": self.deployment.id}


class Relay:
    """Sends errands to hosts of our nodes, and to servers attached by URL."""

    def __init__(
        self,
        placement: Placement,
        attached: AttachedServers,
        signer: Signer,
        salt_key: bytes,
        settings: RelaySettings,
    ) -> None:
        self._placement = placement
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
        self._note(errand, "an answer broke off: no end of the stream was sent")
        raise _broken(errand, "the stream ended before the answer did")

    async def whole(self, errand: Errand) -> Whole:
        """The unstreamed answer. Raises Refusal."""
        try:
            async with self._reply(errand) as reply, self._deadline(self._settings.first_byte_s):
                body = await reply.read(MAX_ANSWER_BYTES)
            ours = errand.names if errand.deployment.is_attached else None
            return read_whole(body, ours, is_salted=errand.deployment.is_salted)
        except (Broken, BadFrame) as fault:
            raise _broken(errand, str(fault)) from None

    @asynccontextmanager
    async def _reply(self, errand: Errand) -> AsyncIterator[Reply]:
        """The engine's answer, its status 200. Raises Refusal."""
        line = self._line(errand.deployment)
        turn = line.turn(errand.tokens)
        while True:
            place = line.take(turn) or await self._wait(line, errand, turn)
            errand.host_id = place.host_id
            try:
                async with AsyncExitStack() as stack:
                    if reply := await self._sent(stack, errand, place):
                        place.is_silent = False
                        with self._noting(errand):
                            yield reply
                        return
                line.lose(place)  # before it is left, or it would be given to who is the next
            finally:
                line.leave(place, turn.tokens)

    async def _sent(self, stack: AsyncExitStack, errand: Errand, place: Place) -> Reply | None:
        """The answer of this place; None if it has run nothing, and another may be asked."""
        may_move = not errand.deployment.is_attached
        try:
            with self._noting(errand):
                async with self._deadline(self._settings.first_byte_s):
                    exchange = place.transport.send(*self._request(errand, place))
                    reply = await stack.enter_async_context(exchange)
        except ConnectFailed as fault:
            if may_move:
                return None
            server = errand.deployment
            self._attached.troubles.unreachable(server.id, server.url, str(fault))
            raise _unreachable(errand, str(fault)) from None
        if errand.deployment.is_attached:
            self._attached.troubles.answered(errand.deployment.url)
        if reply.status == 200:
            return reply
        async with self._deadline(self._settings.idle_s):
            code, message = await _read_refusal(errand, reply)
        if code == DRAINING and may_move:
            return None
        is_theirs = reply.status in FOR_THE_BODY
        if is_theirs and (field := refused_field(errand.deployment, errand.ask, message)):
            todo = REMEDIES.get(field, IN_EXTRA_BODY)
            log.error("upstream_refuses_our_field", host=errand.host_id, field=field, todo=todo)
            self._note(errand, f"it refuses the field {field}: {todo}")
            raise UpstreamFailed("the engine failed; the operator has been told")
        if not is_theirs:
            self._note(errand, f"it answers {reply.status} {code[:64]}".rstrip())
        raise refusal_of(code, message, reply.status, param=errand.param)

    @contextmanager
    def _noting(self, errand: Errand) -> Iterator[None]:
        """A server that breaks off, or is silent, in here is remembered for it."""
        try:
            yield
        except (Broken, BadFrame, UpstreamTimeout) as fault:
            self._note(errand, f"an answer broke off: {fault}")
            raise
        except UpstreamFailed:
            self._note(errand, "an answer ended in an error event")
            raise

    def _note(self, errand: Errand, reason: str) -> None:
        """Remember what went wrong with a server that we reached."""
        if errand.deployment.is_attached:
            self._attached.troubles.failed(errand.deployment.id, errand.deployment.url, reason)

    def _line(self, deployment: Deployment) -> Line:
        line = self._placement.line(deployment.id)
        line.max_in_flight = deployment.max_in_flight
        if deployment.is_attached:
            place = self._attached.place(deployment, self._settings.connect_s)
            if line.places != [place]:
                line.set_places([place])
        return line

    async def _wait(self, line: Line, errand: Errand, turn: Turn) -> Place:
        return await line.wait(turn, errand.deployment.max_waiting, self._settings.start_s)

    def _request(self, errand: Errand, place: Place) -> tuple[str, str, dict[str, str], bytes]:
        deployment, body = errand.deployment, errand.ask.engine_body()
        headers = {"content-type": "application/json", REQUEST_ID: errand.request_id}
        if deployment.is_attached:
            body |= extra_fields(deployment, errand.ask, self._salt(errand.domain))
            if deployment.api_key:
                headers["authorization"] = f"Bearer {deployment.api_key}"
        else:
            token = self._signer.mint(errand.domain, deployment.id)
            headers["authorization"] = f"Bearer {token}"
        url = place.base_url + PATHS[errand.ask.operation]
        return "POST", url, headers, msgspec.json.encode(body)

    def _salt(self, domain: str) -> str:
        return hmac.new(self._salt_key, domain.encode(), hashlib.sha256).hexdigest()

    def _reader(self, errand: Errand) -> Read:
        deployment = errand.deployment
        if deployment.is_attached:
            return foreign_reader(errand.answer_id, deployment.id, is_salted=deployment.is_salted)
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


def _broken(errand: Errand, reason: str) -> UpstreamFailed:
    log.warning("upstream_broke", request_id=errand.request_id, host=errand.host_id, reason=reason)
    return UpstreamFailed("the engine's answer broke off; try again")


def _unreachable(errand: Errand, reason: str) -> Unavailable:
    log.debug(  # for each request; `troubles` warns once
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
