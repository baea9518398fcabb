"""One limit's arithmetic, and the limiter in process, by a clock of the test's own."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gateway.limits.limit import CEILING_US, MINUTE_US, Kind, Limit, Take, changed, wait_us
from gateway.limits.limiter import Held
from gateway.limits.local import SWEEP_LEAST, LocalLimiter

LEASE_US = 1_000_000
KINDS = st.sampled_from(Kind)


class Now:
    """Microseconds, as the test says."""

    def __init__(self) -> None:
        self.us = 1_700_000_000_000_000

    def __call__(self) -> int:
        return self.us


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def limiter(now: Now) -> LocalLimiter:
    return LocalLimiter(now, LEASE_US)


def take(kind: Kind, number: int, amount: int = 1, key: str = "k") -> Take:
    return Take(Limit(f"{key}:{kind.value}", kind, number), amount)


@pytest.mark.parametrize(
    ("number", "burst"), [(1, 1), (7, 7), (10, 10), (11, 10), (60, 10), (66, 11), (600, 100)]
)
def test_requests_come_ten_seconds_worth_at_once_or_ten(number: int, burst: int) -> None:
    limit = Limit("k", Kind.REQUESTS, number)
    assert limit.burst == burst
    assert limit.left(0) == burst
    assert limit.most >= burst * limit.cost(1)


@given(KINDS, st.integers(1, 10**12), st.integers(0, 10**12), st.integers(0, 10**12))
def test_what_was_used_is_what_stays(kind: Kind, number: int, reserved: int, used: int) -> None:
    one = Take(Limit("k", kind, number), reserved)
    assert one.cost + one.change(used) == one.limit.cost(used)


@given(KINDS, st.integers(1, 10**12))
def test_a_limit_has_room_for_itself_and_for_no_more(kind: Kind, number: int) -> None:
    limit = Limit("k", kind, number)
    whole = Take(limit, limit.burst)
    assert whole.can_ever_be
    assert wait_us(whole, 0) <= 0
    assert not Take(limit, limit.burst + 1).can_ever_be
    assert limit.left(0) == limit.burst


@given(st.integers(1, 10**6), st.integers(1, 100), st.integers(1, 10**6))
def test_shares_are_no_more_than_the_limit_but_one_each(
    number: int, replicas: int, amount: int
) -> None:
    one = Take(Limit("k", Kind.TOKENS, number), amount).share(replicas)
    assert one.can_ever_be, "whoever wants more than a share takes all of it"
    assert one.limit.number * replicas <= max(number, replicas)


async def test_requests_come_at_the_rate_after_the_burst(limiter: LocalLimiter, now: Now) -> None:
    one = [take(Kind.REQUESTS, 60)]
    for i in range(10):
        assert (await limiter.reserve(f"r{i}", one)).admitted
    refused = await limiter.reserve("r10", one)
    assert not refused.admitted
    assert wait_us(one[0], refused.levels[0]) == 1_000_000
    now.us += 999_999
    assert not (await limiter.reserve("r10", one)).admitted
    now.us += 1
    assert (await limiter.reserve("r10", one)).admitted
    assert not (await limiter.reserve("r11", one)).admitted


async def test_a_minute_has_never_twice_the_limit(limiter: LocalLimiter, now: Now) -> None:
    one, begun = [take(Kind.REQUESTS, 600)], now.us
    came = 0
    while now.us < begun + MINUTE_US:
        came += (await limiter.reserve(f"r{came}", one)).admitted
        now.us += 20_000
    assert 600 < came <= 700


async def test_all_or_nothing(limiter: LocalLimiter) -> None:
    takes = [take(Kind.REQUESTS, 60), take(Kind.TOKENS, 100, 60), take(Kind.CONCURRENT, 5)]
    assert (await limiter.reserve("a", takes)).admitted
    refused = await limiter.reserve("b", takes)
    assert not refused.admitted
    again = await limiter.reserve("c", takes)
    assert again == refused, "a refusal takes nothing"
    await limiter.settle("a", takes, [1, 10, 0])
    assert (await limiter.reserve("d", takes)).levels == (2_000_000, 70 * 600_000, 1)


async def test_what_was_taken_too_much_of_is_owed(limiter: LocalLimiter, now: Now) -> None:
    one = [take(Kind.TOKENS, 100, 10)]
    await limiter.reserve("a", one)
    await limiter.settle("a", one, [250])
    assert not (await limiter.reserve("b", one)).admitted
    now.us += 160 * 600_000
    assert (await limiter.reserve("b", one)).admitted


async def test_what_is_given_back_late_makes_no_credit(limiter: LocalLimiter, now: Now) -> None:
    one = [take(Kind.TOKENS, 100, 100)]
    await limiter.reserve("a", one)
    now.us += 2 * MINUTE_US
    await limiter.settle("a", one, [0])
    assert (await limiter.reserve("b", one)).levels == (MINUTE_US,)


async def test_a_place_that_isn_t_renewed_gets_free(limiter: LocalLimiter, now: Now) -> None:
    one = [take(Kind.CONCURRENT, 1)]
    assert (await limiter.reserve("a", one)).admitted
    for _ in range(5):
        now.us += LEASE_US - 1
        await limiter.renew([Held("a", one[0])])
        assert not (await limiter.reserve("b", one)).admitted
    now.us += LEASE_US
    assert (await limiter.reserve("b", one)).admitted
    await limiter.settle("a", one, [0])
    assert not (await limiter.reserve("c", one)).admitted, "a's end doesn't free b's place"


async def test_it_forgets_who_has_been_gone_for_long(limiter: LocalLimiter, now: Now) -> None:
    for i in range(20 * SWEEP_LEAST):
        await limiter.reserve(f"r{i}", [take(Kind.REQUESTS, 60, key=f"k{i}")])
        now.us += 10_000
    assert len(limiter._full_at) <= 2 * SWEEP_LEAST
    now.us += MINUTE_US
    assert len(limiter) == 0


async def test_a_renewed_place_hides_none_that_has_ended(limiter: LocalLimiter, now: Now) -> None:
    one = [take(Kind.CONCURRENT, 2)]
    for grant in ("a", "b"):
        assert (await limiter.reserve(grant, one)).admitted
    now.us += LEASE_US - 1
    await limiter.renew([Held("a", one[0])])
    now.us += 1
    assert (await limiter.look(one)).levels == (1,), "b's ended"


@given(st.integers(0, CEILING_US), st.integers(-(10**18), 10**18))
def test_a_level_is_never_below_empty_nor_past_what_can_be_kept(level: int, change: int) -> None:
    assert changed(level, change) == sorted([0, level + change, CEILING_US])[1]
