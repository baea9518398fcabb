"""The models there are, as configured; unknown ones all look the same."""

from __future__ import annotations

import pytest

from gateway.catalog import catalog_of
from gateway.errors import ModelNotFound
from gateway.prices import TokenPrices
from runtime.settings import parse

TEXT = """
[[models]]
id = "own"
engine = "embedded"
source = "smollm2-135m-instruct"
owned_by = "HuggingFaceTB"
released = 2024-11-01
default_max_tokens = 7
price = { currency = "EUR", input = "0.10", cached_input = "0.02", output = "1000000" }

[[models]]
id = "@cf/their/model"
engine = "openai"
url = "http://there/v1/"
upstream_model = "name-there"
api_key_secret = "THERE_KEY"
cache_salt = false
extra_body = { cache_prompt = false }

[[models]]
id = "plain"
engine = "openai"
url = "http://there/v1"
"""
KEYS = {"THERE_KEY": "sk-canary"}
CATALOG = catalog_of(parse(TEXT, "x")[0].models, KEYS)


def test_a_deployment_is_what_the_configuration_says() -> None:
    own = CATALOG.deployment("own")
    assert own.prices == TokenPrices("EUR", 100_000, 20_000, 10**12)
    assert (own.revision, own.default_max_tokens, own.is_attached) == (
        "smollm2-135m-instruct",
        7,
        False,
    )
    assert own.listing() == {
        "id": "own",
        "object": "model",
        "created": 1_730_419_200,
        "owned_by": "HuggingFaceTB",
    }


def test_an_attached_server_s_way_is_kept_with_it() -> None:
    there = CATALOG.deployment("@cf/their/model")
    assert (there.is_attached, there.url) == (True, "http://there/v1")
    assert (there.upstream_model, there.api_key) == ("name-there", "sk-canary")
    assert (there.cache_salt, dict(there.extra_body)) == (False, {"cache_prompt": False})
    assert CATALOG.deployment("plain").upstream_model == "plain"
    assert CATALOG.deployment("plain").api_key == ""


def test_no_key_shows_in_a_repr() -> None:
    assert "canary" not in repr(CATALOG.deployment("@cf/their/model"))


def test_models_are_listed_in_the_order_of_the_configuration() -> None:
    ids = ["own", "@cf/their/model", "plain"]
    assert [model["id"] for model in CATALOG.listing()] == ids
    assert [deployment.id for deployment in CATALOG] == ids
    assert "canary" not in str(CATALOG.listing())
    assert "there" not in str(CATALOG.listing()[2])


@pytest.mark.parametrize("model", ["", "OWN", "own ", "own\0", "../own", "gpt-5", "é" * 128])
def test_an_unknown_model_is_404_and_names_the_field(model: str) -> None:
    with pytest.raises(ModelNotFound, match="GET /v1/models") as told:
        CATALOG.deployment(model)
    assert (told.value.row.status, told.value.param) == (404, "model")
