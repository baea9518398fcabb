"""Two gateways that share PostgreSQL and Redis: a limit is one limit, whichever is asked."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from functools import partial

import httpx
import pytest

from tests.e2e.asking import complete, eventually
from tests.e2e.clients import LONG, Stream
from tests.e2e.replicas import records, replicas
from tests.postgres import Server
from tests.redis_server import RedisServer, needs_redis, redis_server
from tests.stack import Stack

pytestmark = needs_redis

BODY = {"model": "echo", "prompt": "canary-4711", "max_tokens": 3}


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="module")
def url(postgres_server: Server) -> str:
    return postgres_server.new_database()


@pytest.fixture(scope="module")
def pair(
    tmp_path_factory: pytest.TempPathFactory, url: str, redis: RedisServer
) -> Iterator[list[Stack]]:
    more = f'\n[limits.redis]\nurl = "{redis.url}"\ntimeout_s = 5\n'
    with replicas(tmp_path_factory.mktemp("limits"), url, more=more) as stacks:
        yield stacks


def new_tenant(pair: list[Stack], name: str, *limits: str) -> str:
    """Made, and limited, while both run; all clients have its key. Its id."""
    made = json.loads(pair[0].cli("tenants", "create", name, "--json"))
    key = json.loads(pair[0].cli("keys", "create", name, "--json"))["secret"]
    if limits:
        pair[0].cli("limits", "set", name, *limits)
    for stack in pair:
        stack.key = key
    for one in pair:
        eventually(partial(is_known, one, len(limits) // 2), "it isn't known")
    return str(made["id"])


def is_known(stack: Stack, limits: int) -> bool:
    return len(told(stack)) == limits


def has_said(stack: Stack, event: str) -> int:
    return stack.log.read_text().count(f'"{event}"')


def told(stack: Stack) -> list[dict[str, object]]:
    with stack.client() as client:
        answer = client.get("/v1/limits")
        found: list[dict[str, object]] = answer.json().get("data", [])
        return found


async def at_once(pair: list[Stack], each: int) -> list[httpx.Response]:
    async def ask(stack: Stack) -> list[httpx.Response]:
        headers = {"authorization": f"Bearer {stack.key}"}
        limits = httpx.Limits(max_connections=each)
        async with httpx.AsyncClient(
            base_url=stack.url, headers=headers, timeout=120, limits=limits
        ) as client:
            asked = [client.post("/v1/completions", json=BODY) for _ in range(each)]
            return await asyncio.gather(*asked)

    return [answer for answers in await asyncio.gather(*map(ask, pair)) for answer in answers]


def test_200_at_once_at_a_limit_for_one_admit_one(pair: list[Stack], url: str) -> None:
    tenant_id = new_tenant(pair, "one", "--rpm", "1")
    answers = asyncio.run(at_once(pair, 100))
    assert Counter(answer.status_code for answer in answers) == {200: 1, 429: 199}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert "the tenant's limit of 1 request a minute" in refused.json()["error"]["message"]
    rows = [row for row in records(url) if row["tenant_id"] == tenant_id]
    assert len(rows) == 1, "what is refused is no request on record"


def test_both_debit_what_the_ledger_says(pair: list[Stack]) -> None:
    new_tenant(pair, "tokens", "--tpm", "100000")
    spent = 0
    for _ in range(5):
        for stack in pair:
            spent += complete(stack).json()["usage"]["total_tokens"]
    for stack in pair:
        (limit,) = told(stack)
        assert isinstance(limit["remaining"], int)
        assert 100_000 - spent <= limit["remaining"] <= 100_000


def test_a_gateway_that_is_killed_gives_its_places_back(pair: list[Stack]) -> None:
    first, second = pair
    new_tenant(pair, "places", "--concurrent", "2")
    held = [Stream(first, LONG | {"max_tokens": 20_000}) for _ in range(2)]
    assert complete(second).status_code == 429
    first.kill(first.worker_pid())
    eventually(lambda: complete(second).status_code == 200, "the places stay taken")
    for stream in held:
        stream.end()
    eventually(lambda: complete(first).status_code == 200, "it doesn't come back")


def test_they_go_on_while_redis_is_gone(pair: list[Stack], redis: RedisServer) -> None:
    new_tenant(pair, "gone", "--rpm", "4")
    redis.kill()
    try:
        answers = asyncio.run(at_once(pair, 20))
        assert Counter(answer.status_code for answer in answers) == {200: 4, 429: 36}, "2 each"
        assert all(has_said(stack, "limits_counted_alone") for stack in pair)
    finally:
        redis.start()
    for stack in pair:
        eventually(partial(has_said, stack, "limits_together_again"), "it stays alone")
        assert has_said(stack, "limits_counted_alone") == 1, "told once"
