"""Money without rounding: token prices, what a usage costs, and both as text.

An amount is a whole number of pico-units (1e-12) of a currency. A price of one micro-unit per
million tokens is exactly one pico-unit per token, so quantity times price is always exact.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

TokenClass = Literal["input", "cached_input", "output"]
TOKEN_CLASSES: tuple[TokenClass, ...] = ("input", "cached_input", "output")  # disjoint

PICO_PER_UNIT = 10**12
NANO_PER_UNIT = 10**9  # budgets count in nano-units, rounded up
MAX_PRICE_PICO = 10**12  # one unit a token, a million units per 1M tokens
MAX_TOKENS = 2**31 - 1

_MICRO_PER_UNIT = 10**6
_AMOUNT = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,9}))?", re.ASCII)
_PRICE = re.compile(r"([0-9]+)(?:\.([0-9]{1,6}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """What one token of each class costs, in pico-units of `currency` (ISO 4217)."""

    currency: str
    input: int
    cached_input: int
    output: int


@dataclass(frozen=True, slots=True)
class Priced:
    """A price, and which version of it: None where no store was asked."""

    prices: TokenPrices
    version_id: str | None = None
    since: int | None = None  # microseconds UTC


@dataclass(frozen=True, slots=True)
class Terms:
    """What a request is charged by, fixed when it is admitted: the caller's price, everybody's."""

    agreed: Priced
    listed: Priced

    @classmethod
    def of(cls, prices: TokenPrices) -> Terms:
        """The same price for everybody, of no version."""
        return cls(Priced(prices), Priced(prices))

    @property
    def list_prices(self) -> TokenPrices | None:
        """Everybody's prices; None if they are in another currency: they can't be compared."""
        listed = self.listed.prices
        return listed if listed.currency == self.agreed.prices.currency else None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as OpenAI gives them: cached input tokens are part of the input tokens.

    Raises ValueError for counts that can't be: negative, absurdly large, more cached than input.
    """

    input_tokens: int
    cached_input_tokens: int
    output_tokens: int

    def __post_init__(self) -> None:
        input_tokens, cached, output = (
            self.input_tokens,
            self.cached_input_tokens,
            self.output_tokens,
        )
        # one is made for each chunk of a stream: no tuple and no generator for those that can be
        if 0 <= cached <= input_tokens <= MAX_TOKENS and 0 <= output <= MAX_TOKENS:
            return
        counts = (input_tokens, cached, output)
        if 0 <= input_tokens < cached <= MAX_TOKENS and 0 <= output <= MAX_TOKENS:
            raise ValueError(f"cached input tokens are part of the input tokens, not {counts}")
        raise ValueError(f"token counts must be between 0 and {MAX_TOKENS}, not {counts}")


Counts = tuple[int, int, int]  # of each class of tokens: they are disjoint


def counts_of(usage: Usage) -> Counts:
    """A usage by its classes: input that wasn't cached, cached input, output."""
    cached = usage.cached_input_tokens
    return usage.input_tokens - cached, cached, usage.output_tokens


def amounts_of(prices: TokenPrices, counts: Counts) -> Counts:
    """What each class costs, in pico-units. Counts may be below zero: what is given back."""
    uncached, cached, output = counts
    return uncached * prices.input, cached * prices.cached_input, output * prices.output


def parse_price(text: object) -> int:
    """Pico-units per token from units per 1M tokens: "0.10" is 100_000.

    Raises ValueError, saying what to write, for anything but a plain decimal string of at most
    6 decimals and at most a million.
    """
    shape = _PRICE.fullmatch(text) if isinstance(text, str) else None
    if shape is None:
        raise ValueError(_what_to_write(text))
    whole, decimals = shape.groups(default="")
    pico = int(whole) * _MICRO_PER_UNIT + int(decimals.ljust(6, "0"))
    if pico > MAX_PRICE_PICO:
        raise ValueError(_what_to_write(text))
    return pico


def _what_to_write(text: object) -> str:
    return (
        f"{text!r} is not a price: write units of currency per 1M tokens as a decimal string "
        'between "0" and "1000000" with at most 6 decimals, such as "0.10"'
    )


def format_price(pico_per_token: int) -> str:
    """Units per 1M tokens, exactly: 100_000 is "0.1". What `parse_price` reads."""
    return _decimal(pico_per_token, _MICRO_PER_UNIT)


def format_pico(pico: int) -> str:
    """An amount in units, exactly: 1_500_000_000_000 is "1.5"; no exponent, no idle zeros."""
    return _decimal(pico, PICO_PER_UNIT)


def format_nano(nano: int) -> str:
    """A budget's amount in units, exactly: 1_500_000_000 is "1.5"."""
    return _decimal(nano, NANO_PER_UNIT)


def parse_nano(text: object) -> int:
    """Nano-units from units: "12.50" is 12_500_000_000.

    Raises ValueError, saying what to write, for anything but a plain decimal string of at most
    9 decimals.
    """
    shape = _AMOUNT.fullmatch(text) if isinstance(text, str) else None
    if shape is None:
        raise ValueError(
            f"{text!r} is not an amount: write units of currency as a decimal string with at most "
            '9 decimals, such as "100" or "12.50"'
        )
    whole, decimals = shape.groups(default="")
    return int(whole) * NANO_PER_UNIT + int(decimals.ljust(9, "0"))


def _decimal(number: int, per_unit: int) -> str:
    whole, rest = divmod(abs(number), per_unit)
    decimals = str(per_unit + rest)[1:].rstrip("0")
    sign = "-" if number < 0 else ""
    return f"{sign}{whole}.{decimals}" if decimals else f"{sign}{whole}"
