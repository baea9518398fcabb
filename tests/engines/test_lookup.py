"""What drafts are proposed, which of them are taken, and how many a seq may propose. Pure."""

from __future__ import annotations

import random

import pytest

from engines.embedded.drafts import Drafter, accepted
from engines.embedded.lookup import LONGEST, SHORTEST, Lookup
from engines.embedded.pace import (
    FIRST_RATE,
    LONGEST_REST,
    SHORTEST_REST,
    Pace,
    least_rate,
)


@pytest.mark.parametrize(
    ("tokens", "drafts"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 1, 2, 3], (4, 5, 6, 7)),
        ([9, 2, 3, 4, 8, 2, 3], (4, 8, 2, 3)),  # two tokens are enough
        ([1, 2, 3, 7, 8, 2, 3, 9, 9, 1, 2, 3], (7, 8, 2, 3)),  # but three count for more
        ([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], (5, 1, 2, 3)),  # the last place, not the first
        ([1, 2, 8, 8], ()),  # one isn't enough
        ([1, 8, 8, 8], (8, 8, 8, 8)),  # what repeats goes on
        ([4, 5, 4, 5, 4, 5], (4, 5, 4, 5)),
        ([5], ()),
        ([1, 2, 3], ()),
        ([3, 1, 2, 3], ()),
    ],
)
def test_drafts_are_what_followed_the_newest_tokens(
    tokens: list[int], drafts: tuple[int, ...]
) -> None:
    assert Lookup().drafts(tokens, 4) == drafts


def test_a_lookup_that_has_followed_a_list_finds_what_a_fresh_one_does() -> None:
    """Over lists that outgrow its first room, and compared with a plain search."""
    chance = random.Random(4)
    for symbols in (2, 5, 40):
        lookup, tokens = Lookup(), list[int]()
        for _ in range(300):
            tokens += [chance.randrange(symbols) for _ in range(chance.choice([1, 1, 1, 3, 20]))]
            assert lookup.drafts(tokens, 5) == Lookup().drafts(tokens, 5) == searched(tokens, 5)


def searched(tokens: list[int], most: int) -> tuple[int, ...]:
    for length in range(LONGEST, SHORTEST - 1, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[-length:]:
                following = tokens[end:]
                return tuple((following * most)[:most])
    return ()


@pytest.mark.parametrize(
    ("drafts", "choices", "tokens"),
    [
        ((), (5,), (5,)),
        ((1, 2), (1, 2, 3), (1, 2, 3)),
        ((1, 2), (1, 7, 3), (1, 7)),  # what follows a wrong draft counts for nothing
        ((1, 2), (7, 2, 3), (7,)),
        ((1, 2), (1, 2), (1, 2)),  # the third wasn't finite: it is computed again
        ((1, 2), (1,), (1,)),
        ((2, 2), (2, 1, 2), (2, 1)),
    ],
)
def test_drafts_count_as_far_as_the_model_chooses_them(
    drafts: tuple[int, ...], choices: tuple[int, ...], tokens: tuple[int, ...]
) -> None:
    assert accepted(drafts, choices) == tokens


def test_who_is_right_may_propose_all_and_who_is_wrong_fewer() -> None:
    pace = Pace(8)
    assert pace.allowed(0, 1) == 3
    for length in range(9):
        pace.judge(length, 1, 3, 3)
    assert pace.allowed(9, 1) == 8
    pace.judge(9, 1, 8, 0)
    assert 1 < pace.allowed(10, 1) < 8


def test_who_is_always_wrong_rests_each_time_for_longer() -> None:
    """And never for ever: a text may begin to repeat itself at any time."""
    pace, length, rests = Pace(8), 0, []
    for _ in range(12):
        while proposed := pace.allowed(length, 1):
            pace.judge(length, 1, proposed, 0)
        began = length
        while not pace.allowed(length, 1):
            length += 1
        rests.append(length - began)
    assert rests[:3] == [SHORTEST_REST, 2 * SHORTEST_REST, 4 * SHORTEST_REST]
    assert rests[-1] == LONGEST_REST
    for _ in range(8):
        pace.judge(length, 1, 3, 3)
    assert pace.allowed(length, 1) == 8
    while proposed := pace.allowed(length, 1):
        pace.judge(length, 1, proposed, 0)
    assert pace.allowed(length + SHORTEST_REST, 1), "who was right rests no longer than at first"


def test_the_more_rows_run_the_likelier_a_draft_must_be() -> None:
    """Nobody begins where four run; who is right goes on there."""
    begin = [bool(Pace(8).allowed(0, rows)) for rows in (1, 2, 3, 4, 8, 64)]
    assert begin == [True, True, True, False, False, False]
    pace = Pace(8)
    for length in range(9):
        pace.judge(length, 2, 3, 3)
    assert pace.allowed(9, 32) == 8
    assert [round(least_rate(rows), 2) for rows in (1, 4, 64)] == [0.17, 0.44, 0.93]


def test_a_single_draft_is_allowed_where_one_is_the_most() -> None:
    pace = Pace(1)
    pace.judge(1, 1, 1, 0)
    assert pace.allowed(1, 1) == 1


def test_a_drafter_hopes_for_as_much_as_was_right_lately() -> None:
    tokens, drafter = [1, 2, 3, 4] * 4, Drafter(4)
    assert drafter.hope(tokens, 9, 1) == FIRST_RATE * 2
    drafter.judge(16, 1, 2, 2)
    assert drafter.hope(tokens, 9, 1) > 1
    assert drafter.hope(tokens, 0, 1) == drafter.hope([*tokens, 9, 9], 9, 1) == 0
    while drafter.drafts(tokens, 9, 1):
        drafter.judge(16, 1, 4, 0)
    assert drafter.hope(tokens, 9, 1) == 0
