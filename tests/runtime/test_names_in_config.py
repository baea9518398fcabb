"""What the config says across its tables: names, aliases, tenants, contracts, origins, routes."""

from __future__ import annotations

import pytest

from runtime.settings import ConfigError, parse

MODELS = """
[[models]]
id = "a"
engine = "fake"
aliases = ["a-latest", "@cf/a"]
[[models]]
id = "b"
engine = "fake"
"""
GOOD = """
routes = ["ai.example.com/v1/*", "*.example.com/*"]
[[tenants]]
name = "acme"
origins = ["https://app.example.com", "http://localhost:3000", "*", "http://[::1]:8080"]
prices = [
    { model = "a", currency = "USD", input = "0.05", cached_input = "0", output = "1" },
    { model = "b", currency = "EUR", input = "0.05", cached_input = "0", output = "1" },
]
[[tenants]]
name = "beta"
"""


def faults(text: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as told:
        parse(text + MODELS, "x")
    return {fault.path: fault.message for fault in told.value.report.errors}


def test_names_that_differ_are_fine() -> None:
    file, report = parse(GOOD + MODELS, "x")
    assert report.warnings == []
    assert file.models[0].aliases == ("a-latest", "@cf/a")
    assert file.tenants[1].origins == ()


@pytest.mark.parametrize(
    ("name", "path"),
    [("a", "models[1].id"), ("b", "models[2].id"), ("a-latest", "models[1].aliases[0]")],
)
def test_no_two_models_answer_to_one_name(name: str, path: str) -> None:
    more = f'[[models]]\nid = "c"\nengine = "fake"\naliases = ["{name}"]\n'
    assert faults(more) == {path: f"{name!r} is used twice"}


def test_tenants_differ_and_their_contracts_are_about_models_there_are() -> None:
    rest = 'currency = "USD", input = "1", cached_input = "1", output = "1"'
    text = f"""
[[tenants]]
name = "acme"
prices = [{{ model = "a", {rest} }}, {{ model = "zz", {rest} }}]
[[tenants]]
name = "acme"
"""
    assert faults(text) == {
        "tenants[1].name": "'acme' is used twice",
        "tenants[0].prices[1].model": "there is no model 'zz'",
    }
    assert faults(text.replace('"zz"', '"a"').replace('name = "acme"', 'name = "x"', 1)) == {
        "tenants[0].prices[1].model": "'a' has a price already",
    }


def test_a_contract_names_its_whole_price() -> None:
    told = faults('[[tenants]]\nname = "acme"\nprices = [{ model = "a", input = "1" }]\n')
    assert told == {
        f"tenants[0].prices[0].{key}": "is missing"
        for key in ("currency", "cached_input", "output")
    }


@pytest.mark.parametrize(
    "origin",
    ["https://app.example.com/", "app.example.com", "HTTPS://app.example.com", "null", "https://*",
     "ftp://x", "https://x:port", ""],
)  # fmt: skip
def test_an_origin_is_written_as_browsers_send_it(origin: str) -> None:
    told = faults(f'[[tenants]]\nname = "acme"\norigins = ["*", "{origin}"]\n')
    assert list(told) == ["tenants[0].origins[1]"]
    assert '"https://app.example.com"' in told["tenants[0].origins[1]"]


def test_every_bad_route_is_told() -> None:
    told = faults('routes = ["ai.example.com", "ok.test/*", "a.test:1/*"]\n')
    assert list(told) == ["routes[0]", "routes[2]"]


def test_a_model_is_deprecated_before_it_is_shut_down() -> None:
    more = """
[[models]]
id = "c"
engine = "fake"
lifecycle = { deprecated_at = 2027-02-01, shutdown_at = 2027-01-01 }
[[models]]
id = "d"
engine = "fake"
lifecycle = { shutdown_at = "soon" }
"""
    told = faults(more)
    assert told["models[0].lifecycle.shutdown_at"] == "is before `deprecated_at`"
    assert "expected a date, such as 2026" in told["models[1].lifecycle.shutdown_at"]
    assert len(told) == 2


@pytest.mark.parametrize(
    ("successor", "fault"),
    [("nope", "there is no model 'nope'"), ("c", "is the model itself"), ("b", None),
     ("a-latest", None)],
)  # fmt: skip
def test_a_successor_is_another_model_there_is(successor: str, fault: str | None) -> None:
    life = f'{{ deprecated_at = 2027-01-01, successor = "{successor}" }}'
    more = f'[[models]]\nid = "c"\nengine = "fake"\nlifecycle = {life}\n'
    if fault:
        assert faults(more) == {"models[0].lifecycle.successor": fault}
    else:
        parse(more + MODELS, "x")
