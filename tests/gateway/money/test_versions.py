"""Which price is in force when, and what a configuration may add."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from gateway.money.versions import PriceVersion, Timeline, Wanted, plan
from gateway.prices import TokenPrices

OLD, NEW, NEWER = (TokenPrices("USD", price, 0, price) for price in (1, 2, 3))


def timeline(*known: tuple[TokenPrices, int] | tuple[TokenPrices, int, int]) -> Timeline:
    """Versions by price, beginning and when they were made."""
    return Timeline(
        PriceVersion(f"pv_{i}", "m", None, one[0], one[1], one[2] if len(one) > 2 else i, "")
        for i, one in enumerate(known)
    )


def wanted(*named: tuple[TokenPrices, int | None]) -> list[Wanted]:
    return [Wanted(prices, since, f"p[{i}]") for i, (prices, since) in enumerate(named)]


def added(named: Sequence[Wanted], known: Timeline, now: int) -> list[tuple[TokenPrices, int, str]]:
    found = plan(named, known, now)
    assert found.faults == []
    return [(one.prices, one.effective_from, one.reason) for one in found.additions]


def test_in_force_is_what_began_last() -> None:
    known = timeline((OLD, 10), (NEW, 20))
    found = [known.at(us) for us in (9, 10, 19, 20, 99)]
    assert [one and one.prices for one in found] == [None, OLD, OLD, NEW, NEW]


def test_of_two_that_begin_at_once_the_one_that_was_made_later_counts() -> None:
    known = timeline((NEW, 20, 7), (OLD, 10, 1), (NEWER, 20, 9))
    assert known.at(20) == list(known)[-1]
    assert list(known)[-1].prices == NEWER


def test_the_first_prices_may_say_since_when_they_hold() -> None:
    named = wanted((OLD, 10), (NEW, 20), (NEWER, 90))
    assert added(named, timeline(), 50) == [
        (OLD, 10, "first"),
        (NEW, 20, "first"),
        (NEWER, 90, "announced"),
    ]


def test_a_first_price_without_a_day_holds_from_now() -> None:
    assert added(wanted((OLD, None)), timeline(), 50) == [(OLD, 50, "first")]


def test_a_changed_price_holds_from_now_and_once() -> None:
    known = timeline((OLD, 10))
    assert added(wanted((NEW, None)), known, 50) == [(NEW, 50, "changed")]
    assert added(wanted((NEW, None)), timeline((OLD, 10), (NEW, 50)), 60) == []


def test_a_price_that_is_in_force_may_be_given_any_day() -> None:
    known = timeline((OLD, 10))
    for since in (None, 5, 10, 40):
        assert added(wanted((OLD, since)), known, 50) == []


@pytest.mark.parametrize("since", [5, 10, 49, 50])
def test_a_price_that_would_change_the_past_is_a_fault(since: int) -> None:
    found = plan(wanted((NEW, since)), timeline((OLD, 10)), 50)
    assert [path for path, _ in found.faults] == ["p[0].effective_from"]
    assert found.additions == []


def test_a_past_price_beside_the_present_one_must_have_been_in_the_books() -> None:
    known = timeline((OLD, 10), (NEW, 20))
    assert added(wanted((OLD, 10), (NEW, 20)), known, 50) == []
    found = plan(wanted((NEWER, 15), (NEW, 20)), known, 50)
    assert [path for path, _ in found.faults] == ["p[0].effective_from"]


def test_an_announced_price_is_added_once_and_comes_into_force_by_itself() -> None:
    named = wanted((OLD, None), (NEW, 90))
    assert added(named, timeline((OLD, 10)), 50) == [(NEW, 90, "announced")]
    known = timeline((OLD, 10), (NEW, 90))
    assert added(named, known, 60) == []
    assert added(named, known, 100) == []


def test_an_announced_price_may_be_changed_or_taken_back_before_it_begins() -> None:
    known = timeline((OLD, 10, 10), (NEW, 90, 50))
    assert added(wanted((OLD, None), (NEWER, 90)), known, 60) == [(NEWER, 90, "announced")]
    assert added(wanted((OLD, None)), known, 60) == [(OLD, 90, "taken back")]
    known = timeline((OLD, 10, 10), (NEW, 90, 50), (OLD, 90, 60))
    assert added(wanted((OLD, None)), known, 70) == []


def test_an_old_deployment_brings_its_price_back_from_now() -> None:
    known = timeline((OLD, 10), (NEW, 50))
    assert added(wanted((OLD, 10)), known, 60) == [(OLD, 60, "back in force")]


def test_a_price_that_has_no_other_before_it_needs_one() -> None:
    found = plan(wanted((NEW, 90)), timeline(), 50)
    assert [path for path, _ in found.faults] == ["p[0].effective_from"]
    assert [(one.prices, one.effective_from) for one in found.additions] == [(NEW, 50)] * 1 + [
        (NEW, 90)
    ]


prices = st.sampled_from([OLD, NEW, NEWER])
configs = st.lists(
    st.tuples(prices, st.one_of(st.none(), st.integers(0, 100))), min_size=1, max_size=3,
    unique_by=lambda one: one[1],
)  # fmt: skip


@given(st.lists(st.tuples(configs, st.integers(1, 20)), min_size=1, max_size=8))
def test_the_past_never_changes_whatever_is_deployed(
    history: list[tuple[list[tuple[TokenPrices, int | None]], int]],
) -> None:
    known, now = Timeline(), 0
    for named, later in history:
        now += later
        before = [known.at(us) for us in range(now)]
        is_first = not known
        found = plan(wanted(*named), known, now)
        known = Timeline(
            [
                *known,
                *(
                    PriceVersion("", "m", None, one.prices, one.effective_from, now, one.reason)
                    for one in found.additions
                ),
            ]
        )
        if not is_first:
            assert [known.at(us) for us in range(now)] == before
        assert known.at(now) is not None
        again = plan(wanted(*named), known, now)
        assert again.additions == [], "a second one finds that all is there"
        starts = [(-1 if since is None else since, price) for price, since in named]
        begun = [(since, price) for since, price in starts if since <= now]
        if begun and not found.faults:
            in_force = known.at(now)
            assert in_force is not None
            assert in_force.prices == max(begun, key=lambda one: one[0])[1]
