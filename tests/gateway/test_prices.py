"""Money without rounding."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings, strategies as st

from gateway.prices import (
    MAX_PRICE_PICO,
    TokenPrices,
    Usage,
    amounts_of,
    counts_of,
    format_pico,
    format_price,
    parse_price,
)

prices = st.builds(
    TokenPrices,
    currency=st.just("USD"),
    input=st.integers(0, MAX_PRICE_PICO),
    cached_input=st.integers(0, MAX_PRICE_PICO),
    output=st.integers(0, MAX_PRICE_PICO),
)


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    input_tokens = draw(st.integers(0, 10**7))
    return Usage(input_tokens, draw(st.integers(0, input_tokens)), draw(st.integers(0, 10**7)))


@pytest.mark.parametrize(
    ("text", "pico"),
    [
        ("0", 0),
        ("0.10", 100_000),
        ("0.000001", 1),
        ("0.0225", 22_500),
        ("15", 15_000_000),
        ("1000000.000000", MAX_PRICE_PICO),
    ],
)
def test_a_price_per_million_tokens_is_a_whole_number_of_pico_a_token(text: str, pico: int) -> None:
    assert parse_price(text) == pico


@pytest.mark.parametrize(
    "text",
    ["0.0000001", "-1", "+1", "nan", "inf", "1e3", "1,5", "1_0", "", " 1", "1.", ".5", "٣", "1\n"],
)
def test_what_is_finer_or_no_plain_decimal_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match=r'write units of currency per 1M tokens .* "0\.10"'):
        parse_price(text)


@pytest.mark.parametrize("price", [0.1, 1, True, None, "1000000.000001"])
def test_a_float_a_number_or_an_absurd_price_is_refused(price: object) -> None:
    with pytest.raises(ValueError, match="is not a price"):
        parse_price(price)


@settings(deadline=None)  # a busy machine is no fault
@given(pico=st.integers(0, MAX_PRICE_PICO))
def test_a_formatted_price_parses_to_itself(pico: int) -> None:
    assert parse_price(format_price(pico)) == pico


@settings(deadline=None)  # a busy machine is no fault
@given(pico=st.integers(-(2**70), 2**70))
def test_a_formatted_amount_is_exact_and_plain(pico: int) -> None:
    text = format_pico(pico)
    assert Decimal(text) * 10**12 == pico
    assert "E" not in text
    assert "." not in text or text[-1] not in "0."


@pytest.mark.parametrize(
    ("pico", "text"),
    [(0, "0"), (1, "0.000000000001"), (1_500_000_000_000, "1.5"), (-(10**12), "-1")],
)
def test_an_amount_has_no_idle_zeros(pico: int, text: str) -> None:
    assert format_pico(pico) == text


def test_classes_are_disjoint_cached_input_is_not_counted_twice() -> None:
    counts = counts_of(Usage(7, 5, 3))
    assert counts == (2, 5, 3)
    assert amounts_of(TokenPrices("USD", 10, 1, 100), counts) == (20, 5, 300)
    assert amounts_of(TokenPrices("USD", 10, 1, 100), (0, -5, 3)) == (0, -5, 300)


@settings(deadline=None)  # a busy machine is no fault
@given(prices=prices, usage=usages())
def test_classes_add_up_to_the_usage_and_to_its_price(prices: TokenPrices, usage: Usage) -> None:
    counts = counts_of(usage)
    assert sum(counts) == usage.input_tokens + usage.output_tokens
    assert sum(amounts_of(prices, counts)) == (
        (usage.input_tokens - usage.cached_input_tokens) * prices.input
        + usage.cached_input_tokens * prices.cached_input
        + usage.output_tokens * prices.output
    )


@pytest.mark.parametrize("counts", [(-1, 0, 0), (1, 2, 0), (0, 0, -1), (2**31, 0, 0)])
def test_counts_that_cannot_be_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="token"):
        Usage(*counts)
