"""Attached servers are asked for one real token: which of them answer, whatever they say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.errors import Refusal, UpstreamFailed
from gateway.relay.attached import AttachedServers
from gateway.relay.breaker import Breaker, State, Terms
from gateway.relay.extra_fields import salt_of
from gateway.relay.health import Health
from gateway.relay.place import Place
from gateway.relay.placement import Placement
from gateway.relay.relay import Relay
from runtime.capability import Signer
from runtime.config.sections import RelaySettings
from tests.gateway.relaying import (
    ANSWER,
    CHUNK,
    DONE,
    collect,
    deployment_of,
    errand,
    stream_ok,
    text,
    whole_ok,
)
from tests.runtime.upstream import Exchange, Upstream, upstream

SETTINGS = RelaySettings(connect_s=5, first_byte_s=20, probe_every_s=0.05, probe_s=0.3)
NO_TOKEN = {"prompt_tokens": 7, "completion_tokens": 0, "total_tokens": 7}
QUICK = Terms(in_a_row=3, first_s=0.05, most_s=0.1)


class Watched:
    """A relay to servers whose health is followed, and the place of the first of them."""

    def __init__(self, relay: Relay, place: Place, of: Any, placement: Placement) -> None:
        self.relay = relay
        self.place = place
        self.of = of
        self.placement = placement

    async def until(self, state: State) -> None:
        async with asyncio.timeout(20):
            while self.place.breaker.state is not state:
                await asyncio.sleep(0.01)

    @property
    def reason(self) -> str:
        return self.relay.attached.troubles.told()["ours"][0].reason


@asynccontextmanager
async def watched(
    server: Upstream, settings: RelaySettings = SETTINGS, **model: Any
) -> AsyncIterator[Watched]:
    attached, placement = AttachedServers(), Placement()
    relay = Relay(placement, attached, Signer(bytes(32)), b"salt key", settings)
    of = deployment_of(server, model=model)
    (place,) = attached.places(of, settings.connect_s)
    place.breaker = Breaker(QUICK)
    health = Health(attached, placement, b"salt key", settings, tick_s=0.01)
    following = asyncio.ensure_future(health.follow())
    try:
        yield Watched(relay, place, of, placement)
    finally:
        following.cancel()
        await asyncio.wait([following])
        await attached.aclose()


async def silent(exchange: Exchange) -> None:
    await exchange.gone()


async def only_health(exchange: Exchange) -> None:
    """A hang: what isn't a completion is answered as ever."""
    if exchange.method == "GET":
        await exchange.reply_json(200, {"status": "ok"})
    else:
        await exchange.gone()


async def test_a_hang_with_a_healthy_health_route_is_noticed_before_a_client_is() -> None:
    async with upstream(only_health) as server, watched(server) as found:
        await found.until(State.OPEN)
        assert "no token in 0.3 s" in found.reason
        assert found.relay.attached.troubles.told()["ours"][0].is_down


async def test_it_is_sent_requests_again_once_it_answers_a_probe() -> None:
    async with upstream(silent) as server, watched(server) as found:
        await found.until(State.OPEN)
        server.answer = whole_ok
        await found.until(State.CLOSED)
        await found.relay.whole(errand(of=found.of))
        assert not found.relay.attached.troubles.told()["ours"][0].is_down


async def test_who_waits_is_served_once_a_probe_is_answered() -> None:
    async with upstream(silent) as server, watched(server) as found:
        await found.until(State.OPEN)
        line = found.placement.line("ours")
        line.set_places([found.place])
        waiting = asyncio.ensure_future(line.wait(line.turn(1), 10, 30))
        server.answer = whole_ok
        assert await waiting is found.place


async def test_a_probe_is_one_token_of_a_tenant_of_its_own() -> None:
    async with upstream(whole_ok) as server, watched(server, kind="vllm") as found:
        while len(server.asked) < 2:
            await asyncio.sleep(0.01)
        asked = server.asked[0]
        assert (asked.path, asked.json()["max_tokens"]) == ("/v1/chat/completions", 1)
        assert asked.json()["cache_salt"] == salt_of(b"salt key", "probe")
        assert found.place.breaker.state is State.CLOSED


async def test_an_answer_without_a_token_fails_a_probe() -> None:
    """TensorRT-LLM#12933: 200 with nothing in it, until it is restarted."""

    async def empty(exchange: Exchange) -> None:
        await exchange.reply_json(200, ANSWER | {"usage": NO_TOKEN})

    async with upstream(empty) as server, watched(server) as found:
        await found.until(State.OPEN)
        assert found.reason == "a probe: it answers without a token"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_s_empty_answer_is_flagged_and_trips_nothing_but_a_probe(
    streamed: bool,
) -> None:
    """A client may have found a way to be answered with nothing: others don't pay for it."""

    async def answer(exchange: Exchange) -> None:
        if exchange.json()["max_tokens"] == 1:
            await whole_ok(exchange)
        elif streamed:
            usage = CHUNK | {"choices": [], "usage": NO_TOKEN}
            await exchange.events(text("", "stop"), usage, DONE)
        else:
            await exchange.reply_json(200, ANSWER | {"usage": NO_TOKEN})

    settings = RelaySettings(probe_every_s=0)
    async with upstream(answer) as server, watched(server, settings) as found:
        for _ in range(10):
            given = errand(of=found.of, stream=streamed)
            await (collect(found.relay, given) if streamed else found.relay.whole(given))
        assert found.reason == "an answer had no token"
        async with asyncio.timeout(20):
            while not any(asked.json()["max_tokens"] == 1 for asked in server.asked):
                await asyncio.sleep(0.01)
        assert found.place.breaker.state is State.CLOSED


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_guard_that_stops_every_answer_is_found_out_by_probes(streamed: bool) -> None:
    """Nobody tells of one that failed, where its server has no launcher."""

    async def stopped(exchange: Exchange) -> None:
        end = {"finish_reason": "stop", "stop_reason": "kv_integrity_abort", "index": 0}
        if exchange.json().get("stream"):
            await exchange.events(CHUNK | {"choices": [end | {"delta": {"content": ""}}]}, DONE)
        else:
            message = {"role": "assistant", "content": ""}
            await exchange.reply_json(200, ANSWER | {"choices": [end | {"message": message}]})

    settings = RelaySettings(probe_every_s=0)
    async with (
        upstream(stopped) as server,
        watched(server, settings, kind="trtllm") as found,
        asyncio.timeout(20),
    ):
        while found.place.breaker.state is State.CLOSED:
            given = errand(of=found.of, stream=streamed)
            with pytest.raises(Refusal):
                await (collect(found.relay, given) if streamed else found.relay.whole(given))
            await asyncio.sleep(0.02)
        assert "guard" in found.reason


async def test_a_server_that_is_heard_or_has_no_room_isn_t_probed() -> None:
    async def slow(exchange: Exchange) -> None:
        await exchange.events(text("a"), end=False)
        await asyncio.sleep(0.4)
        await exchange.event(DONE)

    async with upstream(slow) as server, watched(server, max_in_flight=1) as found:
        found.place.heard_at = asyncio.get_running_loop().time() + 1000
        await collect(found.relay, errand(of=found.of, stream=True))
        assert len(server.asked) == 1


async def test_what_takes_no_chats_is_asked_with_a_plain_prompt() -> None:
    async def plain(exchange: Exchange) -> None:
        if exchange.path.endswith("/chat/completions"):
            await exchange.reply_json(400, {"error": {"message": "no chat template"}})
        else:
            await whole_ok(exchange)

    async with upstream(plain) as server, watched(server) as found:
        while sum(asked.path == "/v1/completions" for asked in server.asked) < 3:
            await asyncio.sleep(0.01)
        assert sum(asked.path == "/v1/chat/completions" for asked in server.asked) == 1
        assert found.place.breaker.state is State.CLOSED
        server.answer = lambda exchange: exchange.reply_json(400, {"error": "broken"})
        await found.until(State.OPEN)
        assert "what it took before" in found.reason


async def test_a_server_that_refuses_all_probes_is_told_and_stays() -> None:
    async def refuses(exchange: Exchange) -> None:
        await exchange.reply_json(401, {"error": {"message": "m"}})

    async with upstream(refuses) as server, watched(server) as found:
        while len(server.asked) < 12:
            await asyncio.sleep(0.01)
        assert found.place.breaker.state is State.CLOSED
        assert found.reason == "it refuses probes (401, 401)"


async def test_one_that_says_it_is_full_is_alive() -> None:
    async def full(exchange: Exchange) -> None:
        await exchange.reply_json(429, {"error": {"message": "m"}})

    async with upstream(full) as server, watched(server) as found:
        while len(server.asked) < 6:
            await asyncio.sleep(0.01)
        assert found.place.breaker.state is State.CLOSED


async def test_without_probe_every_s_only_an_open_breaker_is_probed() -> None:
    async def fails(exchange: Exchange) -> None:
        await exchange.reply_json(500, {})

    settings = RelaySettings(probe_every_s=0)
    async with upstream(fails) as server, watched(server, settings) as found:
        await asyncio.sleep(0.2)
        assert server.asked == []
        for _ in range(3):
            with pytest.raises(UpstreamFailed):
                await collect(found.relay, errand(of=found.of, stream=True))
        server.answer = lambda e: (stream_ok if e.json().get("stream") else whole_ok)(e)
        await found.until(State.CLOSED)
