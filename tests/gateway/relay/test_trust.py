"""What a guard's lines mean, and when requests may go to its server. Nothing waits here."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from engines.trtllm.salts import digest, salt_id
from gateway.errors import IntegrityAbort, Refusal
from gateway.relay.trust import (
    SILENT_S,
    UNWATCHED_S,
    BadLine,
    Counters,
    Flight,
    Trust,
    meaning,
)

ONE, TWO = "salt of one", "salt of two"


def counters(steps: int = 0, *, boot: str = "b", poisoned: bool = False) -> Counters:
    return Counters(boot, steps, 4 * steps, 0, poisoned)


class Waiting:
    """What a flight waits in."""

    def __init__(self) -> None:
        self.fault: Refusal | None = None

    def end(self, fault: Refusal) -> None:
        self.fault = fault


def flights(trust: Trust, *salts: str) -> list[Flight]:
    return [trust.board(salt) for salt in salts]


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        (b'{"boot":"a","steps":1,"checked":2,"violations":0,"poisoned":false}',
         Counters("a", 1, 2, 0, poisoned=False)),
        (b'{"boot":"a","steps":1,"checked":2,"violations":0,"poisoned":true,"more":1}',
         Counters("a", 1, 2, 0, poisoned=True)),
        (b'{"violation":{"seq":1,"salt":"x","salt_id":null}}',
         {"seq": 1, "salt": "x", "salt_id": None}),
        (b'{"violation":5}', {}),
        (b'{"violation":{"salt":5}}', {}),
        (b'{"violation":{"salt":null,"salt_id":[]}}', {}),
        (b'{"weather":"fine"}', None),
    ],
)  # fmt: skip
def test_what_a_line_means(line: bytes, meant: object) -> None:
    """One that tells of a violation, but badly, may be about anybody."""
    assert meaning(line) == meant


@pytest.mark.parametrize(
    "line",
    [b"", b"x", b"[]", b"5", b"null", b'{"boot":"a"}', b"\xff", b"[" * 100_000, b'{"boot":"a"',
     b'{"boot":5,"steps":1,"checked":2,"violations":0,"poisoned":false}',
     b'{"boot":"a","steps":"1","checked":2,"violations":0,"poisoned":false}',
     b'{"boot":"a","steps":1,"checked":2,"violations":0,"poisoned":0}'],
)  # fmt: skip
def test_a_line_that_tells_nothing(line: bytes) -> None:
    with pytest.raises(BadLine):
        meaning(line)


@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["boot", "violation", "salt", "seq", "x"]), inner),
    max_leaves=8,
).map(msgspec.json.encode))  # fmt: skip
def test_no_line_breaks_it(line: bytes) -> None:
    trust = Trust(0.0)
    flights(trust, ONE)
    try:
        found = meaning(line)
    except BadLine:
        return
    if isinstance(found, Counters):
        trust.counted(found, 0.0, 1.0)
    elif found is not None:
        trust.violated(found)


def test_nobody_is_trusted_who_was_never_heard() -> None:
    trust = Trust(0.0)
    assert "yet to be heard" in trust.judge(0.0)
    trust.trouble = "it answers 401"
    assert "401" in trust.judge(1.0)
    trust.counted(counters(), 0.0, 1.0)
    assert trust.fault == ""


def test_a_silence_ends_the_trust_and_a_line_restores_it() -> None:
    trust = Trust(0.0)
    trust.counted(counters(5), 0.0, 10.0)
    assert trust.judge(10.0 + SILENT_S) == ""
    assert "nothing was heard" in trust.judge(10.1 + SILENT_S)
    trust.counted(counters(5), 0.0, 20.0)
    assert trust.fault == ""


def test_a_silence_that_lasts_ends_what_runs_there() -> None:
    """Where a release has no hook, nobody else would end who reads another's block."""
    trust = Trust(0.0)
    trust.counted(counters(5), 0.0, 10.0)
    one, two = flights(trust, ONE, TWO)
    trust.judge(10.0 + UNWATCHED_S)
    assert (one.fault, two.fault) == (None, None), "there is time to connect anew"
    trust.judge(10.1 + UNWATCHED_S)
    for flight in (one, two):
        with pytest.raises(IntegrityAbort):
            flight.check()
    assert trust.unwatched == 2
    with pytest.raises(IntegrityAbort):  # whose place was chosen a moment before
        trust.board(ONE).check()
    trust.counted(counters(6), 0.0, 30.0)
    trust.board(ONE).check()


def test_a_time_in_which_we_stood_still_is_no_silence() -> None:
    trust = Trust(0.0)
    trust.counted(counters(5), 0.0, 10.0)
    (one,) = flights(trust, ONE)
    trust.stood_still(60.0, 70.0)
    assert trust.judge(70.0) == ""
    assert "nothing was heard" in trust.judge(70.1 + SILENT_S)
    assert one.fault is None
    trust.judge(70.1 + UNWATCHED_S)
    assert one.fault is not None


def test_a_line_that_comes_right_after_we_stood_still_counts_from_then() -> None:
    """Else its guard could be silent for as long as we had been, and be trusted."""
    trust = Trust(0.0)
    trust.counted(counters(5), 0.0, 10.0)
    trust.counted(counters(6), 0.0, 70.0)  # what waited for us is read before we look around
    trust.stood_still(60.0, 70.0)
    assert trust.judge(70.0 + SILENT_S) == ""
    assert "nothing was heard" in trust.judge(70.1 + SILENT_S)


def test_a_launcher_that_ends_the_stream_is_sent_nothing_from_then_on() -> None:
    trust = Trust(0.0)
    trust.counted(counters(5), 0.0, 1.0)
    (running,) = flights(trust, ONE)
    trust.has_ended = True
    assert "launcher ends it" in trust.judge(1.0)
    assert running.fault is None, "what runs there may end"
    trust.counted(counters(5), 0.0, 2.0)
    assert trust.fault == ""


def test_a_guard_that_failed_ends_all_that_runs_there() -> None:
    trust = Trust(0.0)
    trust.counted(counters(1), 0.0, 1.0)
    one, two = flights(trust, ONE, TWO)
    waiting = two.wait = Waiting()
    trust.counted(counters(1, poisoned=True), 0.0, 2.0)
    assert "has failed" in trust.fault
    assert isinstance(one.fault, IntegrityAbort)
    assert waiting.fault is two.fault
    trust.counted(counters(0, boot="another"), 0.0, 3.0)
    assert trust.fault == "", "the server was started anew"


def test_who_comes_as_the_guard_fails_is_stopped_too() -> None:
    """A place is chosen a moment before a request is sent there."""
    trust = Trust(0.0)
    trust.counted(counters(1, poisoned=True), 0.0, 1.0)
    with pytest.raises(IntegrityAbort):
        trust.board(ONE).check()


def test_a_server_that_leaves_is_sent_nothing_and_heard_to_its_end() -> None:
    trust = Trust(0.0)
    trust.counted(counters(1), 0.0, 1.0)
    one, two = flights(trust, ONE, TWO)
    trust.counted(msgspec.structs.replace(counters(1), leaving=True), 0.0, 2.0)
    assert "its launcher ends it" in trust.fault
    trust.violated(told(1, salt=ONE))
    assert (one.fault is None, two.fault) == (False, None)
    trust.counted(counters(0, boot="another"), 0.0, 3.0)
    assert trust.fault == ""


def told(seq: int, salt: str | None = None, number: str | None = None) -> dict[str, Any]:
    return {
        "seq": seq,
        "kind": "foreign",
        "salt": digest(salt) if salt else None,
        "salt_id": f"{salt_id(number):016x}" if number else None,
    }


@pytest.mark.parametrize(
    ("violation", "ended"),
    [
        (told(1, salt=ONE), [True, False]),
        (told(1, number=TWO), [False, True]),
        (told(1, salt=ONE, number=TWO), [True, False]),
        (told(1, salt="nobody's"), [False, False]),
        (told(1), [True, True]),
        ({}, [True, True]),
    ],
)
def test_a_violation_ends_those_whose_salt_it_names(
    violation: dict[str, Any], ended: list[bool]
) -> None:
    """One without a name may be anybody's."""
    trust = Trust(0.0)
    running = flights(trust, ONE, TWO)
    assert trust.violated(violation) == sum(ended)
    assert [flight.fault is not None for flight in running] == ended
    assert trust.violated(violation) == 0, "what has ended ends once"
    assert trust.violations == 2
    for flight in running:
        if flight.fault is None:
            flight.check()
        else:
            with pytest.raises(IntegrityAbort):
                flight.check()


def test_it_is_known_what_was_heard_of_which_life() -> None:
    trust = Trust(0.0)
    trust.counted(counters(), 0.0, 1.0)
    trust.violated(told(7))
    assert (trust.boot, trust.seq) == ("b", 7)
    trust.violated(told(6) | {"seq": "x"})
    assert trust.seq == 7
    trust.counted(counters(boot="c"), 0.0, 2.0)
    assert (trust.boot, trust.seq) == ("c", 0)


def looks(trust: Trust, *seen: tuple[float, int, float]) -> list[bool]:
    """Whether it is trusted after each line, of which are told: when, steps, the last asked."""
    found = []
    for now, steps, asked_at in seen:
        trust.counted(counters(steps), asked_at, now)
        found.append(trust.fault == "")
    return found


def test_answers_without_steps_end_the_trust_until_there_is_one() -> None:
    trust = Trust(0.0)
    (running,) = flights(trust, ONE)
    flat = [(float(now), 5, now - 0.1) for now in range(1, 5)]
    assert looks(trust, *flat[:3]) == [True, True, True]
    assert running.fault is None
    assert looks(trust, flat[3]) == [False]
    assert trust.fault == "it answers, and its guard counts no steps"
    assert running.fault is not None, "nobody watches it"
    assert looks(trust, (9.0, 5, 0.0), (10.0, 6, 0.0)) == [False, True]


def test_an_idle_server_counts_no_steps_and_is_trusted() -> None:
    trust = Trust(0.0)
    assert all(looks(trust, *((float(now), 5, 0.5) for now in range(1, 100))))


def test_first_tokens_that_take_longer_than_a_look_are_missed_by_nobody() -> None:
    trust = Trust(0.0)
    flat = [(now / 1, 5, 1.5 + (now // 10) * 10) for now in range(1, 40)]
    assert looks(trust, *flat)[-1] is False


def test_one_answer_that_takes_long_to_read_says_nothing_of_the_guard() -> None:
    """A step or two may be told before its request is known as answered; then there are none."""
    trust = Trust(0.0)
    assert all(looks(trust, (1.0, 5, 0.5), *((now / 1, 9, 1.5) for now in range(2, 100))))
    assert all(looks(trust, *((now / 1, 9, 101.5) for now in range(102, 200))))


def test_answers_now_and_then_with_their_steps_are_trusted() -> None:
    """The step may be told a line later than its bytes came."""
    trust = Trust(0.0)
    seen = []
    for now in range(10, 400, 10):
        seen += [(now - 0.5, now - 10, now - 0.6), (now + 0.5, now, now - 0.6)]
    assert all(looks(trust, *seen))


def test_lines_that_come_fast_are_no_looks() -> None:
    trust = Trust(0.0)
    assert all(looks(trust, *((1 + now / 100, 5, 1 + now / 100) for now in range(180))))
