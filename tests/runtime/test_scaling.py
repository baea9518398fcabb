"""How many hosts a model wants, and when one is started again: pure tables."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from runtime.node.scaling import (
    Load,
    Policy,
    Slack,
    backoff_s,
    failures_after,
    hosts_needed,
    hosts_to_stop,
    slack_after,
    start_cause,
)

POLICY = Policy(min_hosts=0, max_hosts=4, max_in_flight=10, tokens_per_host=1000, idle_timeout_s=30)


@pytest.mark.parametrize(
    ("load", "hosts"),
    [
        (Load(), 0),
        (Load(waiting=1), 1),
        (Load(in_flight=10), 1),
        (Load(in_flight=10, waiting=1), 2),
        (Load(in_flight=11), 2),
        (Load(waiting=25), 3),
        (Load(in_flight=1, tokens=1000), 1),
        (Load(in_flight=1, tokens=1001), 2),
        (Load(in_flight=30, tokens=100), 3),
        (Load(in_flight=3, tokens=3500), 4),
        (Load(waiting=1000, tokens=10**9), 4),
        (Load(tokens=5000), 0),  # tokens of nobody's request
    ],
)
def test_load_asks_for_as_few_hosts_as_hold_it(load: Load, hosts: int) -> None:
    assert hosts_needed(POLICY, load) == hosts


@pytest.mark.parametrize(("low", "high", "needed"), [(0, 4, 0), (1, 4, 1), (3, 4, 3), (4, 4, 4)])
def test_what_is_promised_is_needed_without_any_load(low: int, high: int, needed: int) -> None:
    assert hosts_needed(Policy(min_hosts=low, max_hosts=high), Load()) == needed


@given(
    st.builds(Load, *[st.integers(0, 10**6)] * 3),
    st.integers(0, 8),
    st.integers(0, 8),
    st.integers(1, 1000),
    st.integers(1, 10**6),
)
def test_the_need_stays_in_bounds_and_holds_the_load(
    load: Load, low: int, more: int, in_flight: int, tokens: int
) -> None:
    policy = Policy(low, max(1, low + more), in_flight, tokens)
    needed = hosts_needed(policy, load)
    assert policy.min_hosts <= needed <= policy.max_hosts
    if needed < policy.max_hosts:
        assert load.waiting + load.in_flight <= needed * in_flight
        assert load.tokens <= needed * tokens or not load.waiting + load.in_flight


def stops(needs: list[tuple[float, int]], live: int, policy: Policy = POLICY) -> list[float]:
    """The times at which a host is stopped, while the need changes as said."""
    slack: Slack | None = None
    found = []
    for now, needed in needs:
        slack = slack_after(slack, live, needed, now)
        if count := hosts_to_stop(slack, live, policy, now):
            found += [now] * count
            live, slack = live - count, None
    return found


def test_a_host_stops_after_the_whole_of_its_idle_timeout() -> None:
    assert stops([(0, 1), (1, 0), (30.9, 0), (31, 0), (99, 0)], live=1) == [31]


def test_a_single_request_begins_the_timeout_anew() -> None:
    assert stops([(0, 0), (29, 1), (30, 0), (59, 0), (60, 0)], live=1) == [60]


def test_of_several_hosts_those_go_that_were_not_needed_at_all() -> None:
    assert stops([(0, 1), (10, 2), (20, 0), (30, 0)], live=3) == [30]
    assert stops([(0, 0), (30, 0)], live=3) == [30, 30, 30]


def test_the_ones_that_were_needed_a_little_go_in_the_next_round() -> None:
    needs = [(0.0, 2), *((float(t), 0) for t in range(1, 100))]
    assert stops(needs, live=3) == [30, 61, 61]


def test_what_is_promised_never_stops() -> None:
    kept = Policy(min_hosts=1, max_hosts=4, idle_timeout_s=30)
    assert stops([(0, 1), (30, 1), (60, 1)], live=3, policy=kept) == [30, 30]
    assert stops([(0, 1), (60, 1), (120, 1)], live=1, policy=kept) == []


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 5)), max_size=40), st.integers(0, 5))
def test_no_host_stops_that_was_needed_within_the_timeout(
    steps: list[tuple[float, int]], live: int
) -> None:
    """Whatever the need does: who stops now was needed by nobody since `idle_timeout_s` ago."""
    now, slack, seen = 0.0, None, []
    for step, needed in steps:
        now += step
        seen.append((now, needed))
        slack = slack_after(slack, live, needed, now)
        if count := hosts_to_stop(slack, live, POLICY, now):
            lately = [need for at, need in seen if at >= now - POLICY.idle_timeout_s]
            assert live - count >= max(lately)
            live, slack = live - count, None


@pytest.mark.parametrize(
    ("failures", "wait_s"),
    [(-1, 0), (0, 0), (1, 0.5), (2, 1), (3, 2), (4, 4), (6, 16), (7, 30), (100, 30), (10**9, 30)],
)
def test_the_wait_doubles_up_to_its_limit(failures: int, wait_s: float) -> None:
    assert backoff_s(failures, 0.5, 30.0) == wait_s


def test_a_first_wait_over_the_limit_is_the_limit() -> None:
    assert backoff_s(1, 60.0, 30.0) == 30.0


@pytest.mark.parametrize(
    ("failures", "lived_s", "after"),
    [(0, 0, 1), (1, 0, 2), (5, 59.9, 6), (5, 60, 1), (5, 1e6, 1), (0, 1e6, 1)],
)
def test_a_long_life_clears_the_failures_before_it(
    failures: int, lived_s: float, after: int
) -> None:
    assert failures_after(failures, lived_s) == after


def test_what_a_host_starts_for() -> None:
    warm, cold = Policy(min_hosts=1), Policy()
    assert start_cause(cold, 0, 0) == "first request"
    assert start_cause(cold, 1, 0) == "load"
    assert start_cause(warm, 0, 0) == "min_hosts"
    assert start_cause(warm, 0, 1) == "replacement"
