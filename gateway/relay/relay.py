"""The way to an engine and back: place, send, read. One boundary, OpenAI's wire format.

Until an answer's first byte another server may be asked, or another model if this one has
`fallback`s; after that it is never sent twice. A refusal of the engine's becomes one of ours.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import structlog

from gateway.catalog.catalog import Deployment
from gateway.errors import IntegrityAbort, Refusal, Unavailable, UpstreamFailed
from gateway.relay import trtllm
from gateway.relay.answer import Answer
from gateway.relay.attached import AttachedServers
from gateway.relay.empty import doubt
from gateway.relay.errand import Errand
from gateway.relay.extra_fields import salt_of
from gateway.relay.placement import Placement
from gateway.relay.probe import PROBE_DOMAIN
from gateway.relay.sending import Sender, broken
from gateway.relay.sent import Sent
from gateway.relay.sse import BadFrame, Frame, Read, Reshape, Splitter, foreign_reader, read_native
from gateway.relay.transport import Broken
from gateway.relay.upstream_errors import refusal_of
from gateway.relay.whole import Whole, read_whole
from runtime.capability import Signer
from runtime.config.sections import RelaySettings

log = structlog.get_logger()

MAX_ANSWER_BYTES = 64 * 1024 * 1024


Moving = Callable[[Deployment], Awaitable[bool]]


async def may_move(_: Deployment) -> bool:
    """Nobody minds which model answers."""
    return True


class Relay:
    """Sends errands, and reads what comes back."""

    def __init__(
        self,
        placement: Placement,
        attached: AttachedServers,
        signer: Signer,
        salt_key: bytes,
        settings: RelaySettings,
    ) -> None:
        self.attached = attached
        self.placement = placement
        self._sender = Sender(placement, attached, signer, salt_key, settings)
        self._settings = settings
        self._probe_salt = salt_of(salt_key, PROBE_DOMAIN)

    async def stream(
        self, errand: Errand, moving: Moving = may_move
    ) -> AsyncGenerator[list[Frame]]:
        """The answer's frames, as many at a time as came together. Raises Refusal.

        Ends after the frame that says done; a stream that stops before it is UpstreamFailed.
        `moving` is asked before another model answers.
        """
        while True:
            has_begun = is_shown = False
            try:
                async with aclosing(self._stream(errand)) as batches:
                    async for batch in batches:
                        has_begun = True
                        is_shown = is_shown or _has_data(batch)
                        yield batch
                return
            except Refusal as fault:
                if not is_shown and self._again_cold(errand, fault):
                    yield [Frame(begins_anew=True)]
                    continue
                if has_begun or not await _falls_back(errand, fault, moving):
                    raise

    async def whole(self, errand: Errand, moving: Moving = may_move) -> Whole:
        """The unstreamed answer. Raises Refusal. For `moving` see `stream`."""
        while True:
            try:
                return await self._whole(errand)
            except Refusal as fault:
                if self._again_cold(errand, fault):
                    continue
                if not await _falls_back(errand, fault, moving):
                    raise

    def _again_cold(self, errand: Errand, fault: Refusal) -> bool:
        """Whether a request that the guard in its engine has stopped is sent once more.

        If so that is paid for, and nothing is found cached for it.
        """
        is_guarded = errand.deployment.kind == trtllm.KIND
        if not is_guarded or errand.is_cold or not isinstance(fault, IntegrityAbort):
            return False
        errand.is_cold = self.attached.budget(errand.deployment.id).take()
        return errand.is_cold

    async def _stream(self, errand: Errand) -> AsyncGenerator[list[Frame]]:
        splitter, written = Splitter(), None
        try:
            async with (
                Sent(self._sender, errand) as answer,
                aclosing(answer.chunks()) as chunks,
            ):
                read = _reader(errand)
                async for chunk in chunks:
                    frames = _until_done(read, splitter.push(chunk))
                    for frame in frames:
                        if frame.usage is not None:
                            written = frame.usage.output_tokens
                    is_done = bool(frames) and frames[-1].done
                    if is_done and written == 0:
                        await self._doubt(errand, answer)
                    yield frames
                    if is_done:
                        return
                if (last := splitter.flush()) and read(last).done:
                    return
                raise Broken("no end of the stream was sent")
        except (Broken, BadFrame) as fault:
            raise broken(errand, str(fault)) from None

    async def _whole(self, errand: Errand) -> Whole:
        try:
            async with Sent(self._sender, errand) as answer:
                body = await answer.read(MAX_ANSWER_BYTES, self._settings.first_byte_s)
                ours = errand.names if errand.deployment.is_attached else None
                shape = _whole_shape(errand)
                found = read_whole(body, ours, is_salted=errand.tells_hits, reshape=shape)
                if found.usage is not None and not found.usage.output_tokens:
                    await self._doubt(errand, answer)
                return found
        except (Broken, BadFrame) as fault:
            raise broken(errand, str(fault)) from None

    async def _doubt(self, errand: Errand, answer: Answer) -> None:
        await doubt(self.attached, errand, answer.place, self._probe_salt, self._settings.probe_s)


def _reader(errand: Errand) -> Read:
    deployment = errand.deployment
    if deployment.kind == trtllm.KIND:
        shape = trtllm.Shape(errand.sent_as, errand.prompt_tokens, stops=errand.ask.stop)
        return trtllm.trt_reader(
            errand.answer_id, deployment.id, shape, is_salted=errand.tells_hits
        )
    if deployment.is_attached:
        return foreign_reader(errand.answer_id, deployment.id, is_salted=errand.tells_hits)
    return read_native


def _whole_shape(errand: Errand) -> Reshape | None:
    if errand.deployment.kind != trtllm.KIND:
        return None
    stops = errand.ask.stop
    return trtllm.Shape(errand.sent_as, errand.prompt_tokens, stops=stops, is_whole=True)


def _has_data(frames: list[Frame]) -> bool:
    """Whether the client gets any of it now."""
    for frame in frames:  # noqa: SIM110 - quicker so
        if frame.data:
            return True
    return False


def _until_done(read: Read, events: list[bytes]) -> list[Frame]:
    """Their frames up to the one that says done; what comes after it means nothing."""
    found = []
    for event in events:
        frame = read(event)
        if frame.error is not None:
            raise refusal_of(*frame.error)
        found.append(frame)
        if frame.done:
            break
    return found


async def _falls_back(errand: Errand, fault: Refusal, moving: Moving) -> bool:
    """Whether another model answers instead: where this one's places can't, and there is one.

    A silence isn't waited out twice, and a request that was stopped for its cache is tried again.
    """
    is_ours = isinstance(fault, Unavailable | UpstreamFailed)
    if not is_ours or isinstance(fault, IntegrityAbort):
        return False
    while errand.fallbacks:
        other, *later = errand.fallbacks
        errand.fallbacks = tuple(later)
        if await moving(other):
            log.warning(
                "fell_back",
                request_id=errand.request_id,
                model=errand.deployment.id,
                to=other.id,
                code=fault.code,
            )
            errand.fall_back(other)
            return True
    return False
