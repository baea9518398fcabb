"""Tenants that wait for one model, on a real server: who is answered first, in the ledger's order.

All places are held until everybody waits, so no timing decides.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import httpx
import pytest

from tests.e2e.gauges import waiting
from tests.stack import Stack, running
from tests.waiting import until

pytestmark = pytest.mark.slow

PLACES, MAX_WAITING = 4, 40
CONFIG = f"""
[[models]]
id = "echo"
engine = "fake"
min_hosts = 1
max_in_flight = {PLACES}
max_waiting = {MAX_WAITING}
options = {{ step_s = 0.002, max_context_tokens = 1000000 }}
"""
BODY = {"model": "echo", "prompt": "abcdefgh", "max_tokens": 10}
HELD = BODY | {"max_tokens": 900_000, "stream": True}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("fair"), CONFIG) as stack:
        yield stack


class Tenant:
    """A new one, and its client."""

    def __init__(self, stack: Stack, name: str, weight: int = 1) -> None:
        stack.cli("tenants", "create", name)
        stack.cli("tenants", "set", name, "--weight", str(weight))
        self.name = name
        self.client = httpx.AsyncClient(
            base_url=stack.url,
            headers={"authorization": f"Bearer {stack.cli('keys', 'create', name).strip()}"},
            limits=httpx.Limits(max_connections=200),
            timeout=120,
        )

    def asks(self, count: int) -> list[asyncio.Task[httpx.Response]]:
        """So many requests, on their way."""
        post = self.client.post
        return [asyncio.create_task(post("/v1/completions", json=BODY)) for _ in range(count)]


@asynccontextmanager
async def all_places_taken(tenant: Tenant) -> AsyncIterator[None]:
    """By answers that don't end by themselves; left, they all go at once."""
    open_answers = []
    async with AsyncExitStack() as held:
        for _ in range(PLACES):
            stream = tenant.client.stream("POST", "/v1/completions", json=HELD)
            answer = await held.enter_async_context(stream)
            assert answer.status_code == 200
            # one whose chunks nobody holds on to is closed
            open_answers.append(answer.aiter_raw())
            await anext(open_answers[-1])
        yield


async def test_a_light_tenant_is_answered_before_a_flood_that_waits(stack: Stack) -> None:
    """Before all of it but for a place's worth, and it gets into a queue that the flood fills."""
    heavy, light = Tenant(stack, "heavy"), Tenant(stack, "light")
    async with heavy.client, light.client:
        async with all_places_taken(heavy):
            flood = heavy.asks(MAX_WAITING + 10)
            await until(lambda: waiting(stack, "echo") == MAX_WAITING and refused(flood) == 10)
            (one,) = light.asks(1)
            await until(lambda: refused(flood) == 11)
            assert waiting(stack, "echo") == MAX_WAITING, "it has the place of the flood's last"
        assert (await one).status_code == 200
        await asyncio.gather(*flood)
    order = settled(stack, "heavy", "light")
    assert order.count("heavy") == MAX_WAITING - 1
    assert order.index("light") <= PLACES + 1, order


async def test_of_two_tenants_that_wait_the_weightier_one_gets_more(stack: Stack) -> None:
    """Three times as much, by weights of 3 and 1, as long as both wait."""
    holder = Tenant(stack, "holder")
    three, one = Tenant(stack, "three", weight=3), Tenant(stack, "one", weight=1)
    each = MAX_WAITING // 2
    async with holder.client, three.client, one.client:
        async with all_places_taken(holder):
            asked = one.asks(each)
            await until(lambda: waiting(stack, "echo") == each)
            asked += three.asks(each)
            await until(lambda: waiting(stack, "echo") == 2 * each)
        assert all(answer.status_code == 200 for answer in await asyncio.gather(*asked))
    first = settled(stack, "three", "one")[:each]
    assert abs(first.count("three") - each * 3 / 4) <= PLACES, first


def refused(asked: list[asyncio.Task[httpx.Response]]) -> int:
    """How many were refused by now."""
    return sum(task.done() and task.result().status_code == 503 for task in asked)


def settled(stack: Stack, *tenants: str) -> list[str]:
    """Whose answers ended well, in the order of the ledger."""
    query = """
    SELECT tenant.name FROM usage_record JOIN tenant ON tenant.id = tenant_id
    WHERE outcome = 'length' ORDER BY seq
    """
    path: Path = stack.state / "bulkhead.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return [name for (name,) in db.execute(query) if name in tenants]
