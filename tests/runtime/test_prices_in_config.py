"""Prices in the config file: what is refused, and that the gateway can use the rest."""

from __future__ import annotations

import pytest

from runtime.settings import ConfigError, parse

MODEL = '[[models]]\nid = "m"\nengine = "fake"\n'


def paths(text: str) -> list[str]:
    with pytest.raises(ConfigError) as told:
        parse(text, "x")
    return [fault.path for fault in told.value.report.errors]


BAD_PRICES = ["", "-1", "+1", "1e3", "1,5", ".5", "1.", "0.1234567", "1_000", "free", "0x1",
              "1000001", "999999999", "0.1\\n", "\\u0661", "1000000.000001"]  # fmt: skip


@pytest.mark.parametrize("price", [f'"{text}"' for text in BAD_PRICES] + ["0.1", "1", "true"])
def test_a_price_is_a_plain_decimal_in_text(price: str) -> None:
    """What passes here must not break the catalog when the gateway starts."""
    assert paths(MODEL + f"price = {{ output = {price} }}\n") == ["models[0].price.output"]


@pytest.mark.parametrize("price", ["0", "0.10", "1000000", "1000000.000000", "0.000001", "3"])
def test_the_gateway_can_use_every_price_that_passes(price: str) -> None:
    from gateway.prices import parse_price

    file, _ = parse(MODEL + f'price = {{ input = "{price}" }}\n', "x")
    assert parse_price(file.models[0].price.input) >= 0


@pytest.mark.parametrize("currency", ["usd", "US", "EURO", "USD\\n", ""])
def test_a_currency_is_three_capitals(currency: str) -> None:
    assert paths(MODEL + f'price = {{ currency = "{currency}" }}\n') == ["models[0].price.currency"]
