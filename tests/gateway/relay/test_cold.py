"""What TensorRT-LLM's own guard stopped is asked again once, with nothing cached."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import IntegrityAbort
from gateway.relay.extra_fields import salt_of
from gateway.relay.retries import RetryBudget
from tests.gateway.relaying import (
    ANSWER,
    BOTH,
    CHUNK,
    DONE,
    USAGE,
    collect,
    errand,
    relaying,
    stream_ok,
    text,
    whole_ok,
)
from tests.runtime.upstream import Exchange, Upstream, upstream

KEY = b"salt key"
TRT = {"kind": "trtllm"}
STOP = {"finish_reason": "stop", "stop_reason": "kv_integrity_abort"}
MESSAGE = {"index": 0, "message": {"role": "assistant", "content": ""}}
WHOLE = {**ANSWER, "choices": [{**MESSAGE, **STOP}]}


class Server:
    """Its hook stops the first `times` requests, after this much text."""

    def __init__(self, times: int, said: str = "") -> None:
        self.times = times
        self.said = said
        self.is_read = asyncio.Event()
        self.salts: list[str] = []

    async def __call__(self, exchange: Exchange) -> None:
        asked = exchange.json()
        self.salts.append(asked["cache_salt"])
        is_stopped = len(self.salts) <= self.times
        if not asked.get("stream"):
            await (exchange.reply_json(200, WHOLE) if is_stopped else whole_ok(exchange))
        elif is_stopped:
            end = CHUNK | {"choices": [{"index": 0, "delta": {"content": ""}, **STOP}]}
            await exchange.events(*([text(self.said)] if self.said else []), end=False)
            if self.said:
                await self.is_read.wait()
            for event in (end, CHUNK | {"choices": [], "usage": USAGE}, DONE):
                await exchange.event(event)
            await exchange.send(b"0\r\n\r\n")
        else:
            await stream_ok(exchange)


async def asked(server: Upstream, *, streamed: bool, relay: Any) -> Any:
    given = errand(server, model=TRT, stream=streamed)
    answer = await (collect(relay, given) if streamed else relay.whole(given))
    return given, answer


@BOTH
async def test_it_is_answered_with_nothing_cached(streamed: bool) -> None:
    hook = Server(times=1)
    async with upstream(hook) as server, relaying() as relay:
        given, frames = await asked(server, streamed=streamed, relay=relay)
    assert not streamed or any(frame.begins_anew for frame in frames)
    assert hook.salts == [salt_of(KEY, "d"), salt_of(KEY, "d req_42")]
    assert (given.is_cold, given.attempts) == (True, 2)


@BOTH
async def test_once_and_no_more(streamed: bool) -> None:
    hook = Server(times=9)
    async with upstream(hook) as server, relaying() as relay:
        with pytest.raises(IntegrityAbort):
            await asked(server, streamed=streamed, relay=relay)
    assert len(hook.salts) == 2


async def test_what_the_client_has_had_the_beginning_of_is_never_begun_anew() -> None:
    hook = Server(times=1, said="h")
    async with upstream(hook) as server, relaying() as relay:
        batches = relay.stream(errand(server, model=TRT, stream=True))
        await anext(batches)
        hook.is_read.set()
        with pytest.raises(IntegrityAbort):
            async for _ in batches:
                pass
    assert len(hook.salts) == 1


async def test_where_no_retry_is_left_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetryBudget, "take", lambda _: False)
    hook = Server(times=1)
    async with upstream(hook) as server, relaying() as relay:
        with pytest.raises(IntegrityAbort):
            await asked(server, streamed=False, relay=relay)
    assert len(hook.salts) == 1
