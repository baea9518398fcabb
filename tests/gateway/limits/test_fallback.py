"""Several processes count in a real Redis, which is killed, halted, flushed and started again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs

from gateway.limits import fallback
from gateway.limits.fallback import Fallback
from gateway.limits.gate import Gate, Grant
from gateway.limits.limit import Kind, Limit, Take
from gateway.limits.limiter import LimiterDown, Verdict
from gateway.limits.local import LocalLimiter
from gateway.limits.redis_client import Address, RedisClient
from gateway.limits.redis_limiter import RedisLimiter
from tests.redis_server import RedisServer, needs_redis, redis_server

pytestmark = needs_redis

TIMEOUT_S = 3.0
LEASE_US = 60_000_000
PLACE = Limit("tenant:tn_1::concurrent", Kind.CONCURRENT, 4, "tenant")
RATE = Limit("tenant:tn_1::rpm", Kind.REQUESTS, 6, "tenant")
TOKENS = Limit("tenant:tn_1::tpm", Kind.TOKENS, 600, "tenant")
MANY = Limit("tenant:tn_2::rpm", Kind.REQUESTS, 6000, "tenant")
CLOSED = Limit("key:k::rpm", Kind.REQUESTS, 60, "key", fails_closed=True)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


class Process:
    """What a gateway process has of limits, without the process."""

    def __init__(self, gate: Gate, limiter: Fallback) -> None:
        self.gate, self.limiter = gate, limiter

    async def enter(self, id: str, *limits: Limit, amount: int = 1) -> Grant | None:
        return (await self.verdict(id, *limits, amount=amount))[1]

    async def verdict(
        self, id: str, *limits: Limit, amount: int = 1
    ) -> tuple[Verdict, Grant | None]:
        return await self.gate.enter(id, [Take(limit, amount) for limit in limits])


@asynccontextmanager
async def process(
    server: RedisServer, name: str, lease_us: int = LEASE_US, least: int = 1
) -> AsyncIterator[Process]:
    async with AsyncExitStack() as stack:
        redis = RedisClient(Address.of(server.url))
        stack.push_async_callback(redis.aclose)
        shared = RedisLimiter(redis, "t", TIMEOUT_S, lease_us)
        limiter = Fallback(shared, name, lambda: least, LocalLimiter(lease_us=lease_us))
        gate = Gate(limiter, lease_us / 3e6)
        await gate.beat()
        yield Process(gate, limiter)


async def until(condition: Callable[[], object], then: Process | None = None) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)
            if then:
                await then.gate.beat()


async def test_two_processes_share_a_limit(server: RedisServer) -> None:
    async with process(server, "a") as a, process(server, "b") as b:
        found = await asyncio.gather(
            *(one.enter(f"{i}-{id(one)}", PLACE) for i in range(100) for one in (a, b))
        )
        let_in = [grant for grant in found if grant]
        assert len(let_in) == 4
        await asyncio.gather(*(grant.settle(1, 0) for grant in let_in))
        assert (len(a.gate), len(b.gate)) == (0, 0)
        assert server.keys("{t}:tenant*") == [], "nothing is held at rest"


async def test_the_clocks_of_gateways_dont_matter(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with process(server, "a") as a, process(server, "b") as b:
        for i in range(6):
            assert await a.enter(f"a{i}", RATE)
        late = time.time() + 86_400
        monkeypatch.setattr(time, "time", lambda: late)
        monkeypatch.setattr(time, "time_ns", lambda: int(late * 1e9))
        verdict, grant = await b.verdict("b", RATE)
        assert grant is None
        assert 50_000_000 < verdict.levels[0] <= 60_000_000


async def test_a_redis_that_is_gone_is_told_once_and_each_has_its_share(
    server: RedisServer,
) -> None:
    heard: list[bool] = []
    with capture_logs() as log:
        async with process(server, "a") as a, process(server, "b"):
            await a.gate.beat()
            assert a.limiter.replicas() == 2
            a.limiter.on_change = heard.append
            server.kill()
            found = [await a.enter(f"x{i}", PLACE) for i in range(10)]
            assert sum(grant is not None for grant in found) == 2
            for _ in range(3):
                await a.gate.beat()
            server.start()
            await until(lambda: a.limiter.is_together, a)
            assert heard == [False, True]
            # What was let in alone counts for all now.
            async with process(server, "c") as c:
                more = [await c.enter(f"c{i}", PLACE) for i in range(10)]
                assert sum(grant is not None for grant in more) == 2
                for grant in filter(None, [*found, *more]):
                    await grant.settle(1, 0)
            assert server.keys("{t}:tenant*") == []
    events = [line["event"] for line in log]
    assert events == ["limits_counted_alone", "limits_together_again"]
    assert log[0]["share"] == "1/2"


async def test_one_that_answers_nothing_is_waited_for_once(server: RedisServer) -> None:
    async with process(server, "a") as a:
        server.halt()
        asked = 0

        async def counting(grant: str, takes: object) -> Verdict:
            nonlocal asked
            asked += 1
            raise LimiterDown("no answer")

        first = await a.enter("first", RATE)
        assert first, "within the time, by its share"
        a.limiter._shared.reserve = counting  # type: ignore[method-assign]
        for i in range(5):
            assert await a.enter(f"r{i}", RATE)
        assert await a.enter("r5", RATE) is None
        assert asked == 0, "nobody else waits for it"
        server.go_on()
        await until(lambda: a.limiter.is_together, a)


async def test_one_that_fails_again_and_again_is_given_longer_each_time(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats get through, requests don't: it isn't told of a thousand times an hour."""
    now = time.monotonic()
    monkeypatch.setattr(fallback, "time", Moment(lambda: now))
    async with process(server, "a") as a:
        with server.client() as client:
            client.lpush("{t}:" + MANY.key, "no time")
        rests = []
        for _ in range(9):
            assert await a.enter("r", MANY)
            began = now
            for _ in range(1000):
                await a.gate.beat()
                if a.limiter.is_together:
                    break
                now += 0.5
            rests.append(now - began)
            now += 5
        assert rests == sorted(rests)
        assert 1 <= rests[0] <= 2
        assert 60 <= rests[-1] <= 61
        now += 20
        assert await a.enter("r", MANY)
        await a.gate.beat()
        assert a.limiter.is_together, "it had been well for long"


@dataclass
class Moment:
    """A clock that the test sets, in place of the module `time`."""

    monotonic: Callable[[], float]


async def test_what_fails_closed_lets_nothing_in(server: RedisServer) -> None:
    async with process(server, "a") as a:
        assert await a.enter("r0", CLOSED, PLACE)
        server.kill()
        with pytest.raises(LimiterDown):
            await a.enter("r1", CLOSED, PLACE)
        assert await a.enter("r2", PLACE), "the other limit goes on, and lost nothing"
        server.start()
        await until(lambda: a.limiter.is_together, a)
        assert await a.enter("r3", CLOSED)


async def test_after_a_flush_what_runs_is_counted_again(server: RedisServer) -> None:
    async with process(server, "a") as a:
        held = [await a.enter(f"r{i}", PLACE) for i in range(4)]
        with server.client() as client:
            client.flushall()
            client.script_flush()
        await a.gate.beat()
        assert await a.enter("r4", PLACE) is None
        for grant in filter(None, held):
            await grant.settle(1, 0)
        assert await a.enter("r5", PLACE)


async def test_a_request_longer_than_a_lease_keeps_its_place(server: RedisServer) -> None:
    lease_us = 300_000
    async with process(server, "a", lease_us) as a, process(server, "b", lease_us) as b:
        keeping = asyncio.create_task(a.gate.keep())
        for i in range(4):
            assert await a.enter(f"r{i}", PLACE)
        begun = time.monotonic()
        refused = 0
        while time.monotonic() - begun < 4 * lease_us / 1e6:
            refused += await b.enter("other", PLACE) is None
            await asyncio.sleep(0.02)
        keeping.cancel()  # it's killed: nobody renews any more
        assert refused
        async with asyncio.timeout(60):
            while await b.enter("other", PLACE) is None:
                await asyncio.sleep(0.05)


async def test_a_settled_request_is_not_renewed(server: RedisServer) -> None:
    """Whichever of the two is sent first."""
    async with process(server, "a") as a:
        for i in range(50):
            grant = await a.enter(f"r{i}", PLACE)
            assert grant
            await asyncio.gather(a.gate.renew(), grant.settle(1, 0))
            with server.client() as client:
                assert client.zcard("{t}:" + PLACE.key) == 0


async def test_what_a_cancelled_request_held_is_free(server: RedisServer) -> None:
    async with process(server, "a") as a:

        async def one(id: str) -> None:
            grant = await a.enter(id, PLACE, RATE)
            assert grant
            async with grant:
                await asyncio.sleep(3600)

        task = asyncio.create_task(one("r"))
        await until(lambda: len(a.gate) == 1)
        task.cancel()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await a.gate.drain()
        assert server.keys("{t}:tenant*") == []


async def test_a_share_takes_what_it_can_of_a_request_that_is_larger(server: RedisServer) -> None:
    async with process(server, "a", least=3) as a:
        server.kill()
        verdict, grant = await a.verdict("r", TOKENS, amount=500)
        assert grant, "it would fit, together"
        assert verdict.takes == [Take(TOKENS.share(3), 200)]
        assert await a.enter("r2", TOKENS, amount=10) is None
        await grant.settle(1, 50)
        assert await a.enter("r3", TOKENS, amount=100)


async def test_a_process_that_starts_without_redis_serves(server: RedisServer) -> None:
    server.kill()
    async with process(server, "a", least=2) as a:
        assert not a.limiter.is_together
        assert not a.gate.is_together
        assert sum([bool(await a.enter(f"r{i}", PLACE)) for i in range(9)]) == 2
        server.start()
        await until(lambda: a.limiter.is_together, a)
        assert sum([bool(await a.enter(f"s{i}", PLACE)) for i in range(9)]) == 2
