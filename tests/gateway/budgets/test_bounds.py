"""The most that a request can cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from gateway.budgets.bounds import (
    TEMPLATE_TOKENS,
    TURN_TOKENS,
    Bound,
    bound_of,
    most_pico,
    nano_of,
    output_within,
)
from gateway.catalog.catalog import Deployment
from gateway.catalog.facts import ModelFacts
from gateway.prices import TokenPrices, Usage, amounts_of, counts_of
from gateway.schema import Ask, Turn

PRICES = TokenPrices("USD", input=100_000, cached_input=20_000, output=300_000)
MODEL = Deployment("m", "us", 0, PRICES, 512, "r", is_attached=True)


def chat(*texts: str, max_tokens: int | None = None) -> Ask:
    turns = [Turn("user", text) for text in texts]
    return Ask(operation="chat", model="m", messages=turns, max_tokens=max_tokens)


def test_text_counts_in_bytes_and_messages_have_their_turn() -> None:
    bound = bound_of(chat("hi", "Grüße", "\ud800", max_tokens=9), MODEL)
    assert bound == Bound(2 + 7 + 3 + 3 * TURN_TOKENS + TEMPLATE_TOKENS, 9, is_default=False)


def test_token_ids_count_as_they_are() -> None:
    ask = Ask(operation="completion", model="m", prompt=[1, 2, 3])
    assert bound_of(ask, MODEL) == Bound(3 + TEMPLATE_TOKENS, 512, is_default=True)


def test_our_own_engines_take_no_more_than_their_context() -> None:
    own = replace(MODEL, is_attached=False, facts=ModelFacts(context_length=1000))
    assert bound_of(chat("x" * 5000, max_tokens=10**6), own) == Bound(1000, 1000, is_default=False)


def test_what_a_card_says_of_another_server_bounds_nothing() -> None:
    theirs = replace(MODEL, facts=ModelFacts(context_length=1000))
    assert bound_of(chat("x" * 5000, max_tokens=10**6), theirs).output_tokens == 10**6


def test_an_operators_limit_has_the_last_word() -> None:
    forced = replace(MODEL, extra_body={"max_tokens": 4096, "max_completion_tokens": True})
    assert bound_of(chat("x"), forced).output_tokens == 4096
    assert not bound_of(chat("x"), forced).is_default  # it couldn't be lowered


def test_nano_is_rounded_up() -> None:
    assert [nano_of(pico) for pico in (0, 1, 999, 1000, 1001)] == [0, 1, 1, 1, 2]


PRICE = st.integers(0, 10**7)


@given(
    prices=st.builds(TokenPrices, st.just("USD"), PRICE, PRICE, PRICE),
    used=st.tuples(st.integers(0, 5000), st.integers(0, 5000)),
    more=st.tuples(st.integers(0, 5000), st.integers(0, 5000)),
    cached=st.integers(0, 5000),
)
def test_no_bill_is_over_its_bound(
    prices: TokenPrices, used: tuple[int, int], more: tuple[int, int], cached: int
) -> None:
    usage = Usage(used[0], min(cached, used[0]), used[1])
    bound = Bound(used[0] + more[0], used[1] + more[1], is_default=True)
    billed = sum(amounts_of(prices, counts_of(usage)))
    assert nano_of(billed) <= nano_of(most_pico(prices, bound))


@given(
    prices=st.builds(TokenPrices, st.just("USD"), PRICE, PRICE, st.integers(1, 10**7)),
    given_tokens=st.integers(0, 5000),
    left=st.integers(0, 10**9),
)
def test_an_answer_that_is_cut_just_fits(prices: TokenPrices, given_tokens: int, left: int) -> None:
    bound = Bound(given_tokens, 512, is_default=True)
    fits = output_within(left, prices, bound)
    if fits < 0:
        assert nano_of(most_pico(prices, bound._replace(output_tokens=0))) > left
        return
    assert nano_of(most_pico(prices, bound._replace(output_tokens=fits))) <= left
    assert nano_of(most_pico(prices, bound._replace(output_tokens=fits + 1))) > left


@pytest.mark.parametrize("left", [0, 5])
def test_output_that_costs_nothing_always_fits(left: int) -> None:
    free = TokenPrices("USD", 0, 0, 0)
    assert output_within(left, free, Bound(10, 512, is_default=True)) == 512
