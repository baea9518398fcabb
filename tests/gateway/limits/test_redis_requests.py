"""A gateway that counts in a real Redis, over real HTTP."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.front import BODY, CHAT, ONE_MODEL, gateway, stream_ok
from tests.redis_server import RedisServer, needs_redis, redis_server

pytestmark = needs_redis

STREAM = BODY | {"stream": True, "max_tokens": 100}


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


def shared(server: RedisServer, rates: str) -> str:
    redis = f'[limits.redis]\nurl = "{server.url}"\ntimeout_s = 5'
    return f"{redis}\n[limits.per_tenant]\n{rates}\n{ONE_MODEL}"


async def test_of_100_at_once_one_comes_at_a_limit_for_one(
    tmp_path: Path, server: RedisServer
) -> None:
    async with gateway(tmp_path, stream_ok, shared(server, "rpm = 1")) as gate:
        answers = await asyncio.gather(*(gate.http.post(CHAT, json=STREAM) for _ in range(100)))
        assert Counter(one.status_code for one in answers) == {200: 1, 429: 99}
        assert len(gate.rows()) == 1


async def test_who_asks_one_by_one_always_has_its_place(
    tmp_path: Path, server: RedisServer
) -> None:
    async with gateway(tmp_path, stream_ok, shared(server, "concurrent = 1\ntpm = 100000")) as gate:
        for _ in range(20):
            assert (await gate.http.post(CHAT, json=STREAM)).status_code == 200
        assert server.keys("{bulkhead}:*concurrent*") == [], "nothing is held at rest"


async def test_what_fails_closed_is_503_while_redis_is_gone(
    tmp_path: Path, server: RedisServer
) -> None:
    config = shared(server, 'rpm = 60\nfail = "closed"')
    async with gateway(tmp_path, stream_ok, config) as gate:
        assert (await gate.http.post(CHAT, json=STREAM)).status_code == 200
        server.kill()
        for _ in range(3):
            refused = await gate.http.post(CHAT, json=STREAM)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.json()["error"]["code"] == "limits_unavailable"
        assert len(gate.rows()) == 1
        server.start()
        async with asyncio.timeout(60):
            while (await gate.http.post(CHAT, json=STREAM)).status_code != 200:
                await asyncio.sleep(0.05)
        events = Counter(line["event"] for line in gate.log)
        assert events["limits_counted_alone"] == events["limits_together_again"] == 1


async def test_a_redis_that_doesn_t_let_us_in_is_one_that_is_down(
    tmp_path: Path, server: RedisServer
) -> None:
    with server.client() as client:
        client.config_set("requirepass", "another")
    async with gateway(tmp_path, stream_ok, shared(server, "rpm = 4")) as gate:
        assert (await gate.http.post(CHAT, json=STREAM)).status_code == 200
        told = (await gate.http.get("/v1/limits")).json()
        assert told["data"][0]["remaining"] == 3
