"""Who leaves while limits are being reserved holds nothing afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.limits.gate import Gate
from gateway.limits.limit import Kind, Limit, Take
from gateway.limits.limiter import LimiterDown, Verdict
from gateway.limits.local import LocalLimiter
from tests.gateway.front import CHAT, Gateway, gateway, stream_ok
from tests.redis_server import needs_redis, redis_server
from tests.runtime.upstream import Exchange
from tests.waiting import until

BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 10, "stream": True}
PLACES = Limit("tenant:concurrent", Kind.CONCURRENT, 3, "tenant")
TOKENS = Limit("tenant:tpm", Kind.TOKENS, 1000, "tenant")
TAKES = (Take(PLACES, 1), Take(TOKENS, 500))
CONFIG = """
[limits.redis]
url = "{redis}"
timeout_s = 30
[limits.per_tenant]
concurrent = 5
[[models]]
id = "first"
engine = "openai"
kind = "vllm"
url = "{url}"
fallback = ["second"]
[[models]]
id = "second"
engine = "openai"
kind = "vllm"
url = "{url}"
limits = { concurrent = 1, tpm = 1000 }
"""


class Slow(LocalLimiter):
    """One that is asked over a network: what was sent is counted, whoever waits for the answer."""

    waits = True

    def __init__(self, turns: int) -> None:
        super().__init__(lambda: 10**15)
        self.turns = turns
        self.is_down = False

    async def reserve(self, grant: str, takes: Sequence[Take]) -> Verdict:
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if self.is_down:
            raise LimiterDown("gone")
        verdict = await super().reserve(grant, takes)
        for _ in range(self.turns):
            await asyncio.sleep(0)
        return verdict


@pytest.mark.parametrize("after", range(12))
async def test_whenever_it_is_cancelled(after: int) -> None:
    gate = Gate(limiter := Slow(turns=4))

    async def live() -> None:
        _, grant = await gate.enter("r", TAKES)
        assert grant
        async with grant:
            await asyncio.sleep(60)

    request = asyncio.create_task(live())
    for _ in range(after):
        await asyncio.sleep(0)
    request.cancel()
    await asyncio.wait({request})
    assert request.cancelled()
    await gate.drain()
    assert len(gate) == 0
    assert (await limiter.look(TAKES)).levels == (0, 0)


async def test_what_was_refused_or_not_counted_is_not_given_back() -> None:
    """It would be others'."""
    gate = Gate(limiter := Slow(turns=4))
    await gate.enter("other", (Take(TOKENS, 800),))
    for limiter.is_down in (False, True):
        request = asyncio.create_task(gate.enter("r", TAKES))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        request.cancel()
        await asyncio.wait({request})
        await gate.drain()
        assert (await limiter.look(TAKES)).levels == (0, TOKENS.cost(800))


@needs_redis
async def test_a_client_that_leaves_while_a_fallback_is_reserved(tmp_path: Path) -> None:
    """Its place there was held for the rest of a lease: half a minute of 429 for everybody."""
    with redis_server() as server:

        async def answer(exchange: Exchange) -> None:
            if exchange.json()["model"] == "first":
                server.halt()  # before the gateway asks for a place at the second
                await exchange.reply_json(503, {})
            else:
                await stream_ok(exchange)

        config = CONFIG.replace("{redis}", server.url)
        async with gateway(tmp_path, answer, config) as found:
            leaving = asyncio.ensure_future(found.http.post(CHAT, json=BODY | {"model": "first"}))
            await until(lambda: len(found.server.asked) == 1)
            await asyncio.sleep(0.2)  # so that it's asked for
            leaving.cancel()
            await asyncio.wait({leaving})
            await until(lambda: _is_closed(found))
            server.go_on()
            await found.env.admission._gate.drain()
            got = await found.http.post(CHAT, json=BODY | {"model": "second"})
            assert got.status_code == 200
            await found.requests(2)
            assert server.keys("*concurrent") == []


def _is_closed(found: Gateway) -> bool:
    return all(row["state"] != "open" for row in found.rows())
