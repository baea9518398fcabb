"""A relay to another server on a real port, and what that server may answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.catalog.catalog import Deployment, catalog_of
from gateway.relay.attached import AttachedServers
from gateway.relay.errand import Errand
from gateway.relay.placement import Placement
from gateway.relay.relay import Relay
from gateway.relay.sse import Frame
from gateway.schema import decode_chat
from runtime.capability import Signer
from runtime.config.attached import AttachedServer
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


def deployment_of(*servers: Upstream, model: Any = None) -> Deployment:
    """The model "ours", or as `model` says, on these servers."""
    options: dict[str, Any] = {"id": "ours", "engine": "openai"} | (model or {})
    weights = options.pop("weights", [1] * len(servers))
    if len(servers) == 1:
        options["url"] = f"{servers[0].url}/v1/"
    else:
        options["servers"] = tuple(
            AttachedServer(url=f"{server.url}/v1", weight=weight)
            for server, weight in zip(servers, weights, strict=True)
        )
    settings = ModelSettings(**options)
    return catalog_of([settings], {"KEY": "sk-there"}).deployment(settings.id, 0)


def errand(
    *servers: Upstream, domain: str = "d", model: Any = None, of: Any = None, **changes: Any
) -> Errand:
    """A chat with a model on these servers, or with a deployment at hand."""
    ask = decode_chat(json.dumps(CHAT | changes).encode())
    return Errand(ask, of or deployment_of(*servers, model=model), domain, "req_42")


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
