"""The limiter in process and the one in a real Redis: whatever happens, they say the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator
from typing import Any, ClassVar, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)

from gateway.limits.limit import Kind, Limit, Take
from gateway.limits.limiter import Held
from gateway.limits.local import LocalLimiter
from gateway.limits.redis_client import Address, RedisClient
from gateway.limits.redis_limiter import SCRIPT, RedisLimiter
from tests.redis_server import RedisServer, needs_redis, redis_server
from tests.stack import SOAK

pytestmark = needs_redis
T = TypeVar("T")

LEASE_US = 20_000  # so short that some end within a test
NOW = "local now = time[1] * 1000000 + time[2]\n"
LIMITS = [
    Limit("key:rpm", Kind.REQUESTS, 90_000),  # a cost of 667 us: a bucket fills as the test runs
    Limit("tenant:rpm", Kind.REQUESTS, 7),
    Limit("key:tpm", Kind.TOKENS, 1_000_000),
    Limit("tenant:tpm", Kind.TOKENS, 3_333),
    Limit("key:concurrent", Kind.CONCURRENT, 2),
    Limit("model:concurrent", Kind.CONCURRENT, 5),
]


class ToldRedis(RedisLimiter):
    """Also leaves in Redis the time of its last step, at which the other then does the same."""

    script = SCRIPT.replace(NOW, NOW + "redis.call('SET', 'now', string.format('%.0f', now))\n")


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


def takes() -> st.SearchStrategy[list[Take]]:
    chosen = st.lists(st.sampled_from(LIMITS), min_size=1, unique_by=lambda limit: limit.key)
    amounts = st.integers(1, 2_000)

    def some(limits: list[Limit], amounts: list[int]) -> list[Take]:
        pairs = zip(limits, amounts, strict=False)
        return [Take(one, n if one.kind is Kind.TOKENS else 1) for one, n in pairs]

    return st.builds(some, chosen, st.lists(amounts, min_size=6, max_size=6))


class Both(RuleBasedStateMachine):
    """Each step is done by both, at the same time to the microsecond."""

    server: ClassVar[RedisServer]
    grants: Bundle[tuple[str, list[Take]]] = Bundle("grants")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.control = self.server.client()
        self.control.flushall()
        self.now = 0
        self.redis = RedisClient(Address.of(self.server.url))
        self.shared = ToldRedis(self.redis, "t", 10.0, LEASE_US)
        self.local = LocalLimiter(lambda: self.now, LEASE_US)
        self.number = 0

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        found = self.runner.run(call)
        if told := self.control.get("now"):
            self.now = int(told)
        return found

    @rule(target=grants, wanted=takes())
    def reserve(self, wanted: list[Take]) -> Any:
        self.number += 1
        grant = f"req_{self.number}"
        theirs = self.run(self.shared.reserve(grant, wanted))
        ours = self.runner.run(self.local.reserve(grant, wanted))
        assert ours == theirs
        # What was refused has nothing to settle. It isn't left out: that would hang on the time.
        return grant, wanted if ours.admitted else []

    @rule(held=consumes(grants), used=st.lists(st.integers(0, 5_000), min_size=6, max_size=6))
    def settle(self, held: tuple[str, list[Take]], used: list[int]) -> None:
        grant, wanted = held
        counts = used[: len(wanted)]
        if not wanted:
            return
        self.run(self.shared.settle(grant, wanted, counts))
        self.runner.run(self.local.settle(grant, wanted, counts))

    @rule(held=st.lists(grants, max_size=3))
    def renew(self, held: list[tuple[str, list[Take]]]) -> None:
        places = [
            Held(grant, take)
            for grant, wanted in held
            for take in wanted
            if take.limit.kind is Kind.CONCURRENT
        ]
        if places:
            self.run(self.shared.renew(places))
            self.runner.run(self.local.renew(places))

    @rule(seconds=st.floats(0, 0.03))
    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    @rule()
    def forget_the_script(self) -> None:
        self.control.script_flush()

    @invariant()
    def all_levels_are_the_same(self) -> None:
        """Asked by a request that wants everything, more than there ever is."""
        looked = self.run(self.shared.look([Take(limit, 0) for limit in LIMITS]))
        assert self.runner.run(self.local.look(looked.takes)) == looked
        wanted = [Take(limit, limit.number + 1) for limit in LIMITS]
        theirs = self.run(self.shared.reserve("ask", wanted))
        assert self.runner.run(self.local.reserve("ask", wanted)) == theirs
        assert not theirs.admitted

    def teardown(self) -> None:
        self.runner.run(self.redis.aclose())
        self.runner.close()
        self.control.close()


def test_they_say_the_same(server: RedisServer) -> None:
    machine = type("OnThisServer", (Both,), {"server": server})
    examples = 200 if SOAK else 25
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=20)
    )
