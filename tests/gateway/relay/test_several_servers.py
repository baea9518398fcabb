"""One model on several servers: which gets a request, and who is asked after one that failed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from gateway.errors import BadRequest, Refusal, Unavailable, UpstreamFailed
from gateway.relay.breaker import State
from gateway.relay.errand import Errand
from gateway.relay.relay import Relay
from gateway.relay.retries import MAX_ATTEMPTS, PURSE
from tests.gateway.relaying import (
    BOTH,
    CHUNK,
    DONE,
    collect,
    deployment_of,
    errand,
    relaying,
    stream_ok,
    text,
    whole_ok,
)
from tests.runtime.upstream import Exchange, Upstream, upstream


async def ok(exchange: Exchange) -> None:
    await (stream_ok if exchange.json().get("stream") else whole_ok)(exchange)


def answers(status: int) -> Any:
    async def answer(exchange: Exchange) -> None:
        await exchange.reply_json(status, {"error": {"message": "m"}})

    return answer


async def closes(exchange: Exchange) -> None:
    exchange.close()


async def closes_after_head(exchange: Exchange) -> None:
    await exchange.events(end=False)
    exchange.close()


async def ends_empty(exchange: Exchange) -> None:
    await exchange.events()


async def send(relay: Relay, given: Errand) -> None:
    await (collect(relay, given) if given.ask.stream else relay.whole(given))


def nobody() -> Upstream:
    """A server on a port where nobody listens."""
    server = Upstream(ok)
    server.port = 9
    return server


FAILS = {
    "502": answers(502), "503": answers(503), "504": answers(504), "429": answers(429),
    "closed": closes, "closed after the head": closes_after_head, "an end at once": ends_empty,
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("name", FAILS)
async def test_a_failure_before_the_first_byte_is_made_good_elsewhere(
    name: str, streamed: bool
) -> None:
    async with upstream(FAILS[name]) as bad, upstream(ok) as good, relaying() as relay:
        of = deployment_of(bad, good)
        given = errand(of=of, stream=streamed)
        await send(relay, given)
        assert (len(bad.asked), len(good.asked), given.attempts) == (1, 1, 2)
        assert given.host_id
        assert given.host_id.endswith(str(good.port))


@BOTH
async def test_nobody_there_is_made_good_elsewhere(streamed: bool) -> None:
    async with upstream(ok) as good, relaying() as relay:
        given = errand(of=deployment_of(nobody(), good), stream=streamed)
        await send(relay, given)
        assert (len(good.asked), given.attempts) == (1, 2)


NOT_AGAIN = {"400": 400, "401": 401, "404": 404, "500": 500}


@pytest.mark.parametrize("status", NOT_AGAIN.values(), ids=NOT_AGAIN)
async def test_what_another_server_would_say_too_is_asked_once(status: int) -> None:
    async with upstream(answers(status)) as bad, upstream(ok) as good, relaying() as relay:
        given = errand(of=deployment_of(bad, good))
        with pytest.raises((BadRequest, UpstreamFailed)):
            await relay.whole(given)
        assert (len(bad.asked), len(good.asked), given.attempts) == (1, 0, 1)


async def test_after_the_first_byte_nothing_is_sent_again() -> None:
    async def cut(exchange: Exchange) -> None:
        await exchange.events(text("a"), end=False)
        exchange.close()

    async with upstream(cut) as bad, upstream(ok) as good, relaying() as relay:
        given = errand(of=deployment_of(bad, good), stream=True)
        with pytest.raises(UpstreamFailed):
            await collect(relay, given)
        assert (given.attempts, len(good.asked)) == (1, 0)


async def test_a_single_server_is_asked_again_only_if_it_closed_without_a_byte() -> None:
    """A connection that was idle may be closed just as it is used again."""
    for answer, asked in ((closes, 2), (answers(503), 1), (answers(502), 1)):
        async with upstream(answer) as bad, relaying() as relay:
            with pytest.raises(Refusal):
                await relay.whole(errand(bad))
            assert len(bad.asked) == asked


async def test_a_request_that_breaks_servers_breaks_two_at_most() -> None:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(upstream(closes)) for _ in range(4)]
        relay = await stack.enter_async_context(relaying())
        with pytest.raises(UpstreamFailed):
            await relay.whole(errand(of=deployment_of(*servers)))
        assert sorted(len(server.asked) for server in servers) == [0, 0, 1, 1]


async def test_attempts_are_few_however_many_servers_there_are() -> None:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(upstream(answers(503))) for _ in range(5)]
        relay = await stack.enter_async_context(relaying())
        given = errand(of=deployment_of(*servers))
        with pytest.raises(Unavailable):
            await relay.whole(given)
        assert sum(len(server.asked) for server in servers) == given.attempts == MAX_ATTEMPTS


async def test_retries_multiply_no_outage() -> None:
    """When all fails, a fifth more is sent than was asked for, and a purse full at the start."""
    async with upstream(answers(429)) as one, upstream(answers(429)) as two, relaying() as relay:
        of, requests = deployment_of(one, two), 100
        for _ in range(requests):
            with pytest.raises(Unavailable):
                await relay.whole(errand(of=of))
        assert len(one.asked) + len(two.asked) <= requests * 1.2 + PURSE


async def test_requests_go_to_the_server_with_the_least_to_do_by_weight() -> None:
    release = asyncio.Event()

    async def held(exchange: Exchange) -> None:
        await release.wait()
        await whole_ok(exchange)

    async with upstream(held) as one, upstream(held) as two, relaying() as relay:
        of = deployment_of(one, two, model={"weights": [1, 3]})
        running = [asyncio.ensure_future(relay.whole(errand(of=of))) for _ in range(8)]
        while len(one.asked) + len(two.asked) < 8:
            await asyncio.sleep(0.01)
        assert (len(one.asked), len(two.asked)) == (2, 6)
        release.set()
        await asyncio.gather(*running)


async def test_room_is_each_server_s_own() -> None:
    release = asyncio.Event()

    async def held(exchange: Exchange) -> None:
        await release.wait()
        await whole_ok(exchange)

    async with upstream(held) as one, relaying() as relay:
        given = errand(one, model={"max_in_flight": 2})
        running = [
            asyncio.ensure_future(relay.whole(errand(of=given.deployment))) for _ in range(5)
        ]
        while len(one.asked) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert len(one.asked) == 2, "the others wait"
        release.set()
        await asyncio.gather(*running)
        assert len(one.asked) == 5


async def test_an_open_breaker_keeps_requests_away_at_once() -> None:
    """peers: a fleet isn't asked again and again while it fails."""
    async with upstream(answers(500)) as bad, relaying() as relay:
        of = deployment_of(bad)
        for _ in range(3):
            with pytest.raises(UpstreamFailed):
                await relay.whole(errand(of=of))
        (place,) = relay.attached.places(of, 1)
        assert place.breaker.state is State.OPEN
        for _ in range(20):
            with pytest.raises(Unavailable):
                await relay.whole(errand(of=of))
        assert len(bad.asked) == 3
        assert relay.attached.troubles.told()["ours"][0].breaker == "open"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 413, 422, 429])
async def test_4xx_never_trips_the_breaker(status: int) -> None:
    """sglang#25811: one bad client took the fleet down."""
    async with upstream(answers(status)) as server, relaying() as relay:
        of = deployment_of(server)
        for _ in range(40):
            with pytest.raises(Refusal):
                await relay.whole(errand(of=of))
        server.answer = ok
        await relay.whole(errand(of=of))


@BOTH
async def test_a_client_that_leaves_never_trips_the_breaker(streamed: bool) -> None:
    async def silent(exchange: Exchange) -> None:
        if streamed:
            await exchange.events(text("a"), end=False)
        await exchange.gone()

    async with upstream(silent) as server, relaying() as relay:
        of = deployment_of(server)
        for count in range(1, 31):
            running = asyncio.ensure_future(send(relay, errand(of=of, stream=streamed)))
            while len(server.asked) < count:
                await asyncio.sleep(0.005)
            running.cancel()
            await asyncio.wait([running])
        server.answer = ok
        await send(relay, errand(of=of, stream=streamed))


async def test_what_is_in_flight_falls_when_the_stream_ends_not_when_its_headers_come() -> None:
    """sglang#9484."""
    go_on = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await exchange.events(text("a"), end=False)
        await go_on.wait()
        await exchange.event(CHUNK | {"choices": []})
        await exchange.event(DONE)

    async with upstream(slow) as server, relaying() as relay:
        of = deployment_of(server)
        (place,) = relay.attached.places(of, 1)
        stream = relay.stream(errand(of=of, stream=True))
        await anext(stream)
        assert place.in_flight == 1
        assert place.tokens > 0
        go_on.set()
        async for _ in stream:
            pass
        assert (place.in_flight, place.tokens) == (0, 0)
