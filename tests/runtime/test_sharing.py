"""Who gets memory when it is short, and who gives way: tables, and what hypothesis thinks of."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from runtime.node.sharing import GRACE_S, Ask, Holder, Shares, share

NOW, YIELD_S = 1000.0, 10.0
OLD, NEW = NOW - 100, NOW - 1  # since when a host serves
LONG, SHORT = NOW - YIELD_S, NOW - 1  # since when a model waits


def holder(id: str, model: str, size: int = 4, **changes: Any) -> Holder:
    """A busy host that has served for long."""
    return replace(Holder(id, model, size, since=OLD), **changes)


def idle(id: str, model: str, since: float = NOW - 60, **changes: Any) -> Holder:
    return holder(id, model, idle_since=since, **changes)


def decide(
    holders: list[Holder], *asks: Ask, budget: int = 4, promised: dict[str, int] | None = None
) -> Shares:
    return share(budget, holders, asks, promised or {}, NOW, YIELD_S)


def names(shares: Shares) -> tuple[list[str], list[str], list[str]]:
    """(who starts, which hosts leave, who waits)"""
    return (
        [ask.model for ask in shares.starts],
        [holder.id for holder in shares.leaving],
        [ask.model for ask in shares.waiting],
    )


A = Ask("a", 4, SHORT)
A_LONG = Ask("a", 4, LONG)

CASES: dict[str, tuple[list[Holder], tuple[Ask, ...], dict[str, Any], tuple[Any, Any, Any]]] = {
    "there is room": ([], (A,), {}, (["a"], [], [])),
    "an idle host gives way at once": ([idle("b1", "b")], (A,), {}, ([], ["b1"], ["a"])),
    "but not one that has just become idle": (
        [idle("b1", "b", NOW - GRACE_S / 2)], (A,), {}, ([], [], ["a"]),
    ),
    "the longest idle goes first": (
        [idle("b1", "b", NOW - 50), idle("c1", "c", NOW - 70)], (A,), {"budget": 8},
        ([], ["c1"], ["a"]),
    ),
    "a busy one stays": ([holder("b1", "b")], (A,), {}, ([], [], ["a"])),
    "until somebody has waited for long": (
        [holder("b1", "b")], (A_LONG,), {}, ([], ["b1"], ["a"]),
    ),
    "but not one that has served for less": (
        [holder("b1", "b", since=NOW - 9)], (A_LONG,), {}, ([], [], ["a"]),
    ),
    "an idle one rather than a busy one": (
        [holder("b1", "b"), idle("c1", "c", NOW - 2)], (A_LONG,), {"budget": 8},
        ([], ["c1"], ["a"]),
    ),
    "of busy ones, one of several hosts": (
        [holder("b1", "b", since=OLD - 9), holder("c1", "c"), holder("c2", "c")], (A_LONG,),
        {"budget": 12}, ([], ["c1"], ["a"]),
    ),
    "never a promised one": (
        [idle("b1", "b")], (A_LONG,), {"promised": {"b": 1}}, ([], [], ["a"]),
    ),
    "but one beside it": (
        [idle("b1", "b"), idle("b2", "b")], (A,), {"budget": 8, "promised": {"b": 1}},
        ([], ["b1"], ["a"]),
    ),
    "never one's own": ([idle("a1", "a")], (A_LONG,), {}, ([], [], ["a"])),
    "nobody leaves in vain": ([idle("b1", "b", size=2)], (Ask("a", 9, LONG),), {"budget": 8},
                              ([], [], ["a"])),
    "one that leaves already is waited for": (
        [holder("b1", "b", is_leaving=True), idle("c1", "c")], (A,), {"budget": 8},
        ([], [], ["a"]),
    ),
    "two that wait have two leave": (
        [idle("b1", "b", NOW - 9), idle("c1", "c", NOW - 8)], (A, Ask("d", 4, NOW)),
        {"budget": 8}, ([], ["b1", "c1"], ["a", "d"]),
    ),
    "a small one doesn't overtake": (
        [holder("b1", "b", size=6)], (Ask("a", 4, SHORT), Ask("d", 1, NOW)), {"budget": 8},
        ([], [], ["a", "d"]),
    ),
    "unless enough is left beside": (
        [holder("b1", "b", size=4, is_leaving=True)], (Ask("a", 4, SHORT), Ask("d", 2, NOW)),
        {"budget": 6}, (["d"], [], ["a"]),
    ),
    "two idle ones for one large": (
        [idle("b1", "b", size=2), idle("c1", "c", size=2)], (A,), {}, ([], ["b1", "c1"], ["a"]),
    ),
    "no more than needed": (
        [idle("b1", "b", NOW - 9, size=1), idle("c1", "c", NOW - 8, size=4)], (A,), {"budget": 5},
        ([], ["c1"], ["a"]),
    ),
    "who has a host takes none that is another's only one": (
        [holder("a1", "a"), holder("b1", "b")], (A_LONG,), {"budget": 8}, ([], [], ["a"]),
    ),
    "nor one that would be taken back": (
        [holder("a1", "a"), holder("b1", "b"), holder("b2", "b")], (A_LONG,), {"budget": 12},
        ([], [], ["a"]),
    ),
    "but one of many": (
        [holder("a1", "a"), *(holder(f"b{i}", "b") for i in range(3))], (A_LONG,),
        {"budget": 16}, ([], ["b0"], ["a"]),
    ),
    "an option is taken where there is room": (
        [holder("a1", "a")], (Ask("a", 4, SHORT, is_optional=True),), {"budget": 8},
        (["a"], [], []),
    ),
    "and nobody gives way for it": (
        [holder("a1", "a"), idle("b1", "b")], (Ask("a", 4, LONG, is_optional=True),),
        {"budget": 8}, ([], [], ["a"]),
    ),
    "nor does anybody wait": (
        [holder("a1", "a")], (Ask("a", 4, LONG, is_optional=True), Ask("d", 4, NOW)),
        {"budget": 8}, (["d"], [], ["a"]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_who_gets_memory(case: str) -> None:
    holders, asks, more, expected = CASES[case]
    assert names(decide(holders, *asks, **more)) == expected


def test_two_models_that_share_one_place_take_turns_of_yield_s() -> None:
    """No ping-pong: a change of hosts needs a whole turn of waiting and of serving."""
    serving, waiting_since, since, turns = "a", NOW, NOW, []
    for tick in range(1, 1000):
        now = NOW + tick / 10
        other = "b" if serving == "a" else "a"
        shares = share(
            4, [holder("h", serving, since=since)], [Ask(other, 4, waiting_since)], {}, now, YIELD_S
        )
        if shares.leaving:
            turns.append(now - since)
            serving, waiting_since, since = (
                other,
                now,
                now + 0.5,
            )  # the old one waits, the new loads
    assert len(turns) == 9
    assert all(YIELD_S <= turn <= YIELD_S + 0.2 for turn in turns)


MODELS = ["a", "b", "c", "d"]
TIMES = st.floats(NOW - 100, NOW)
HOLDERS = st.lists(
    st.builds(
        Holder,
        id=st.uuids().map(str),
        model=st.sampled_from(MODELS),
        bytes=st.integers(1, 8),
        since=TIMES,
        idle_since=st.none() | TIMES,
        is_leaving=st.booleans(),
    ),
    max_size=10,
)
ASKS = st.lists(
    st.builds(
        Ask,
        model=st.sampled_from(MODELS),
        bytes=st.integers(1, 12),
        since=TIMES,
        is_optional=st.booleans(),
    ),
    max_size=5,
    unique_by=lambda ask: ask.model,
)


@given(
    HOLDERS, ASKS, st.dictionaries(st.sampled_from(MODELS), st.integers(0, 3)), st.integers(0, 40)
)
def test_the_rules_hold_whatever_there_is(
    holders: list[Holder], asks: list[Ask], promised: dict[str, int], budget: int
) -> None:
    shares = share(budget, holders, asks, promised, NOW, YIELD_S)
    held = sum(holder.bytes for holder in holders)
    started = sum(ask.bytes for ask in shares.starts)
    assert not shares.starts or held + started <= budget, "memory is never promised twice"
    assert Counter(shares.starts + shares.waiting) == Counter(asks), "everybody is told"
    assert not any(one.is_leaving for one in shares.leaving)
    assert len({one.id for one in shares.leaving}) == len(shares.leaving)
    live = Counter(one.model for one in holders if not one.is_leaving)
    for model, count in Counter(one.model for one in shares.leaving).items():
        assert live[model] - count >= promised.get(model, 0), "nobody is brought below its promise"
    patient = [ask for ask in shares.waiting if not ask.is_optional]
    for one in shares.leaving:
        assert any(ask.model != one.model for ask in patient), "nobody leaves for nobody"
        if one.idle_since is None or one.idle_since > NOW - GRACE_S:
            assert one.since <= NOW - YIELD_S
            assert any(ask.since <= NOW - YIELD_S for ask in patient)
