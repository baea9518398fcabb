"""Whole numbers of small units, told as exact decimals: never a float, never an exponent."""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache


@lru_cache(maxsize=256)  # a row tells a cost, and a price, several times; many rows have the same
def plain(number: int, places: int) -> str:
    """`number` units of 10^-places, as "-1.5": no idle zeros."""
    whole, rest = divmod(abs(number), 10**places)
    decimals = f"{rest:0{places}}".rstrip("0") if rest else ""
    sign = "-" if number < 0 else ""
    return f"{sign}{whole}.{decimals}" if decimals else f"{sign}{whole}"


def exact(number: int, places: int) -> Decimal:
    """The same as a Decimal, whatever precision the context has."""
    digits = tuple(map(int, str(abs(number))))
    return Decimal((int(number < 0), digits, -places))
