"""When a silence is a hang, and when a guard is no guard any more: a table, without a clock."""

from __future__ import annotations

import pytest

from engines.trtllm.state import State
from runtime.trt.watch import AGAIN_S, Answer, End, Heard, Patience, Watch

PATIENCE = Patience(every_s=15, within_s=30, starved_s=600)
TOKEN, FULL = Answer(Heard.TOKEN), Answer(Heard.FULL, "it is full")
SILENCE = Answer(Heard.SILENCE, "no token in 30 s")
FAULT = Answer(Heard.FAULT, "it answers 503")


def guard(steps: int = 10, violations: int = 0, *, poisoned: bool = False, boot: int = 7) -> State:
    return State(1, boot, steps, steps * 4, violations, poisoned, 1)


def reason(end: End | None) -> str:
    return end.reason if end else ""


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([TOKEN, TOKEN, TOKEN], ""),
        ([SILENCE], ""),
        ([SILENCE, TOKEN, SILENCE], ""),
        ([SILENCE, SILENCE], "no token in 30 s"),
        ([FAULT], ""),
        ([FAULT, SILENCE], "no token in 30 s"),
        ([SILENCE, FAULT], "it answers 503"),
        ([FAULT, FULL, FAULT], ""),
        ([FULL] * 20, ""),
    ],
)
def test_without_a_guard_two_misses_in_a_row_are_the_end(
    answers: list[Answer], expected: str
) -> None:
    watch = Watch(PATIENCE, None, now=0)
    ends = [watch.asked(answer, None, None, now=i * 30) for i, answer in enumerate(answers)]
    assert ends[:-1] == [None] * (len(ends) - 1)
    assert reason(ends[-1]) == expected


@pytest.mark.parametrize(
    ("answer", "steps", "expected"),
    [
        (TOKEN, 1, ""),
        (TOKEN, 0, "tokens come, and the guard counts no step: nobody watches the blocks"),
        (FULL, 0, ""),
        (SILENCE, 1, ""),
        (SILENCE, 0, "no token in 30 s"),
        (FAULT, 1, "it answers 503"),
        (FAULT, 0, "it answers 503"),
    ],
)
def test_with_a_guard_its_steps_tell_a_long_line_from_a_hang(
    answer: Answer, steps: int, expected: str
) -> None:
    watch = Watch(PATIENCE, guard(0), now=0)
    ends = [watch.asked(answer, guard(i * steps), guard((i + 1) * steps), now=i) for i in range(2)]
    assert expected in {reason(end) for end in ends}
    assert not any(end and end.drains for end in ends)


def test_a_line_that_never_moves_for_us_is_an_end_too() -> None:
    watch = Watch(PATIENCE, guard(0), now=0)
    assert watch.asked(SILENCE, guard(1), guard(2), now=599) is None
    end = watch.asked(SILENCE, guard(2), guard(3), now=600)
    assert reason(end) == "no token of ours in 600 s, though it computes"
    assert watch.asked(TOKEN, guard(3), guard(4), now=601) is None
    assert watch.asked(SILENCE, guard(4), guard(5), now=1200) is None


@pytest.mark.parametrize(
    ("seen", "expected", "drains"),
    [
        (guard(10), "", False),
        (guard(11), "", False),
        (guard(11, violations=1), "the guard saw a block that wasn't the request's", True),
        (guard(11, poisoned=True), "the guard has failed", False),
        (guard(11, violations=1, poisoned=True), "the guard has failed", False),
        (guard(11, boot=8), "the guard has begun anew", False),
        (None, "the guard's counters can't be read", False),
    ],
)
def test_what_the_guard_says_is_an_end_without_any_token(
    seen: State | None, expected: str, drains: bool
) -> None:
    looked = Watch(PATIENCE, guard(10), now=0).looked(seen)
    asked = Watch(PATIENCE, guard(10), now=0).asked(SILENCE, guard(10), seen, now=1)
    for end in (looked, asked):
        assert (end is not None) == bool(expected)
        assert reason(end).startswith(expected)
        assert bool(end and end.drains) == drains


def test_violations_from_before_its_first_token_are_an_end_too() -> None:
    """What it has cached can't be trusted, whenever that was seen."""
    watch = Watch(PATIENCE, guard(10, violations=3), now=0)
    end = watch.looked(guard(11, violations=3))
    assert end == End("the guard saw a block that wasn't the request's", drains=True)


def test_where_no_guard_is_to_be_none_is_missed() -> None:
    assert Watch(PATIENCE, None, now=0).looked(None) is None


def test_after_a_miss_the_next_ask_comes_soon_but_not_at_once() -> None:
    watch = Watch(PATIENCE, None, now=0)
    assert watch.wait_s == 15
    watch.asked(FAULT, None, None, now=0)
    assert watch.wait_s == AGAIN_S
    watch.asked(TOKEN, None, None, now=1)
    assert watch.wait_s == 15
