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


ATTACHED = '[[models]]\nid = "m"\nengine = "openai"\nkind = "vllm"\nurl = "http://10.0.0.5/v1"\n'
DATED = 'currency = "USD"\ninput = "1"\ncached_input = "1"\noutput = "1"\n'
ALL = ["input", "cached_input", "output"]


@pytest.mark.parametrize(
    ("more", "free"),
    [
        ("", ["price"]),
        ("price = {}\n", [f"price.{name}" for name in ALL]),
        ('price = { currency = "EUR" }\n', [f"price.{name}" for name in ALL]),
        ('price = { input = "1", output = "2" }\n', ["price.cached_input"]),
        ('price = { output = "0.000001" }\n', ["price.input", "price.cached_input"]),
        ('price = { input = "0" }\n', []),
        ('price = { input = "0.00", output = "0" }\n', []),
        ('price = { input = "1", cached_input = "0", output = "1" }\n', []),
        (f"[[models.prices]]\neffective_from = 2020-01-01\n{DATED}", []),
        (f"[[models.prices]]\neffective_from = 9999-01-01\n{DATED}", ["price"]),
    ],
)
def test_what_is_free_because_nobody_named_its_price_is_told(more: str, free: list[str]) -> None:
    _, report = parse(ATTACHED + more, "x")
    assert [fault.path for fault in report.warnings] == [f"models[0].{path}" for path in free]
    assert all("free" in fault.message for fault in report.warnings)


def test_what_is_said_to_do_about_it_does_it() -> None:
    _, report = parse(ATTACHED, "x")
    (told,) = report.warnings
    price = told.message.rpartition("say ")[2]
    assert not parse(f"{ATTACHED}price = {price}\n", "x")[1].warnings
