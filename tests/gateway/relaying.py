"""A relay to another server on a real port, and what that server may answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.catalog.catalog import catalog_of
from gateway.relay.attached import AttachedServers
from gateway.relay.placement import Placement
from gateway.relay.relay import Errand, Relay
from gateway.relay.sse import Frame
from gateway.schema import decode_chat
from runtime.capability import Signer
from runtime.config.models import ModelSettings
from runtime.config.sections import RelaySettings
from tests.runtime.upstream import Exchange, Upstream

SETTINGS = RelaySettings(connect_s=1, start_s=1, first_byte_s=5, idle_s=5)
CHAT: dict[str, Any] = {
    "model": "ours", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5,
}  # fmt: skip
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
CHUNK = {"id": "theirs", "object": "chat.completion.chunk", "created": 1, "model": "theirs"}
ANSWER = {
    "id": "theirs", "object": "chat.completion", "created": 1, "model": "theirs",
    "system_fingerprint": "x", "usage": USAGE,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "ho"},
                 "finish_reason": "stop"}],
}  # fmt: skip
DONE = b"data: [DONE]\n\n"
BOTH = pytest.mark.parametrize("streamed", [False, True])


def text(content: str, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return CHUNK | {"choices": [choice]}


@asynccontextmanager
async def relaying(settings: RelaySettings = SETTINGS) -> AsyncIterator[Relay]:
    attached = AttachedServers()
    try:
        yield Relay(Placement(), attached, Signer(bytes(32)), b"salt key", settings)
    finally:
        await attached.aclose()


def errand(server: Upstream, domain: str = "d", model: Any = None, **changes: Any) -> Errand:
    options = {"id": "ours", "engine": "openai", "url": f"{server.url}/v1/"} | (model or {})
    deployment = catalog_of([ModelSettings(**options)], {"KEY": "sk-there"}).deployment("ours", 0)
    ask = decode_chat(json.dumps(CHAT | changes).encode())
    return Errand(ask, deployment, domain, "req_42")


async def collect(relay: Relay, given: Errand, seen: list[Frame] | None = None) -> list[Frame]:
    frames = [] if seen is None else seen
    async for batch in relay.stream(given):
        frames += batch
    return frames


async def whole_ok(exchange: Exchange) -> None:
    await exchange.reply_json(200, ANSWER)


async def stream_ok(exchange: Exchange) -> None:
    await exchange.events(
        text("h"), text("o", "stop"), CHUNK | {"choices": [], "usage": USAGE}, DONE
    )
