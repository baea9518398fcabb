"""Decimals: exactly the number, in digits that any program reads."""

from __future__ import annotations

from decimal import Decimal, localcontext

from hypothesis import given, strategies as st

from gateway.usage.decimals import exact, plain

NUMBERS = st.integers(-(10**26), 10**26)
PLACES = st.integers(1, 16)


@given(NUMBERS, PLACES)
def test_the_digits_are_the_number(number: int, places: int) -> None:
    told = plain(number, places)
    assert Decimal(told) == exact(number, places)
    assert not set(told) - set("-0123456789.")
    assert not told.endswith(".")
    assert not ("." in told and told.endswith("0"))


@given(NUMBERS, PLACES)
def test_no_context_rounds_it(number: int, places: int) -> None:
    with localcontext() as context:
        context.prec = 3
        told = exact(number, places)
    with localcontext() as context:
        context.prec = 60
        assert told * 10**places == number


def test_as_people_write_them() -> None:
    told = [plain(number, 6) for number in (0, 1, -1, 1_500_000, -20_000_000, 1_000_000)]
    assert told == ["0", "0.000001", "-0.000001", "1.5", "-20", "1"]
