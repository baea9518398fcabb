"""The circuit breaker, without I/O and without waiting: what opens it, and what closes it."""

from __future__ import annotations

from hypothesis import given, strategies as st

from gateway.relay.breaker import Breaker, State, Terms

TERMS = Terms(in_a_row=3, share=0.5, at_least=10, window_s=30, first_s=5, most_s=20)


def opened(at: float = 0.0) -> Breaker:
    breaker = Breaker(TERMS)
    for _ in range(3):
        breaker.fail(at)
    return breaker


def test_failures_in_a_row_open_it() -> None:
    breaker = Breaker(TERMS)
    assert [breaker.fail(0), breaker.fail(0)] == [False, False]
    breaker.succeed(0)
    assert [breaker.fail(0), breaker.fail(0), breaker.fail(0)] == [False, False, True]
    assert breaker.state is State.OPEN


def test_failures_in_a_row_count_over_any_time() -> None:
    """A server that is asked once an hour is as broken as another."""
    breaker = Breaker(TERMS)
    assert [breaker.fail(at * 3600) for at in range(3)] == [False, False, True]


def test_a_large_share_of_failures_opens_it_though_none_are_in_a_row() -> None:
    breaker = Breaker(TERMS)
    for at in range(4):
        breaker.succeed(at)
        assert not breaker.fail(at)
    breaker.succeed(5)
    assert breaker.fail(6), "five of ten"


def test_a_share_is_one_of_a_window() -> None:
    breaker = Breaker(TERMS)
    for at in range(40):  # every other one, but never ten within a window
        breaker.succeed(at * 10)
        assert not breaker.fail(at * 10)


def test_open_is_half_open_for_one_probe_after_a_while() -> None:
    breaker = opened(at=100)
    assert not breaker.may_probe(104.9)
    assert breaker.may_probe(105)
    assert breaker.state is State.HALF_OPEN
    assert not breaker.may_probe(1000), "one probe, until it has ended"


def test_a_probe_that_is_answered_closes_it_and_all_is_forgotten() -> None:
    breaker = opened()
    assert breaker.may_probe(5)
    breaker.probed(is_answered=True, now=6)
    assert breaker.state is State.CLOSED
    assert [breaker.fail(6), breaker.fail(6), breaker.fail(6)] == [False, False, True]
    assert breaker.until == 11, "as long as at first"


def test_each_probe_that_fails_keeps_it_open_for_twice_as_long_up_to_a_bound() -> None:
    breaker, now, waits = opened(), 0.0, []
    for _ in range(4):
        waits.append(breaker.until - now)
        now = breaker.until
        assert breaker.may_probe(now)
        breaker.probed(is_answered=False, now=now)
    assert waits == [5, 10, 20, 20]


def test_what_was_asked_for_before_it_opened_changes_nothing() -> None:
    breaker = opened()
    breaker.succeed(1)
    assert not breaker.fail(1)
    assert (breaker.state, breaker.until) == (State.OPEN, 5)


@given(st.lists(st.tuples(st.sampled_from("sfpq"), st.floats(0, 100)), max_size=200))
def test_it_is_never_half_open_without_a_probe_and_always_closes_by_one(
    events: list[tuple[str, float]],
) -> None:
    breaker, now, probing = Breaker(TERMS), 0.0, False
    for event, passed in events:
        now += passed
        if event == "s":
            breaker.succeed(now)
        elif event == "f":
            breaker.fail(now)
        elif event == "p":
            probing |= breaker.may_probe(now)
        elif probing:
            breaker.probed(is_answered=False, now=now)
            probing = False
        assert (breaker.state is State.HALF_OPEN) == probing
    if breaker.state is State.OPEN:
        assert breaker.until - now <= TERMS.most_s
        assert breaker.may_probe(breaker.until)
    if breaker.state is State.HALF_OPEN:
        breaker.probed(is_answered=True, now=now)
    assert breaker.state is State.CLOSED
