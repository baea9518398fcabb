"""The models there are, as configured; unknown ones all look the same."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from gateway.catalog.catalog import catalog_of
from gateway.errors import ModelNotFound
from gateway.prices import TokenPrices
from runtime.settings import parse
from tests.trtllm.folder import tokenizer_folder

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
cache = "shared-accepted"
url = "http://there/v1/"
upstream_model = "name-there"
api_key_secret = "THERE_KEY"
extra_body = { cache_prompt = false }

[[models]]
id = "plain"
engine = "openai"
cache = "salted"
url = "http://there/v1"
"""
NOW = 1_800_000_000_000_000  # in January 2027
KEYS = {"THERE_KEY": "sk-canary"}
CATALOG = catalog_of(parse(TEXT, "x")[0].models, KEYS)


def test_a_deployment_is_what_the_configuration_says() -> None:
    own = CATALOG.deployment("own", NOW)
    assert own.prices == TokenPrices("EUR", 100_000, 20_000, 10**12)
    assert (own.revision, own.default_max_tokens, own.is_attached) == (
        "smollm2-135m-instruct",
        7,
        False,
    )
    assert (own.created, own.owned_by) == (1_730_419_200, "HuggingFaceTB")


def test_an_attached_server_s_way_is_kept_with_it() -> None:
    there = CATALOG.deployment("@cf/their/model", NOW)
    (server,) = there.servers
    assert (there.is_attached, server.url) == (True, "http://there/v1")
    assert (there.upstream_model, server.api_key) == ("name-there", "sk-canary")
    assert (there.is_salted, dict(there.extra_body)) == (False, {"cache_prompt": False})
    assert CATALOG.deployment("plain", NOW).upstream_model == "plain"
    assert CATALOG.deployment("plain", NOW).servers[0].api_key == ""


def test_no_key_shows_in_a_repr() -> None:
    assert "canary" not in repr(CATALOG.deployment("@cf/their/model", NOW))


def test_models_come_in_the_order_of_the_configuration() -> None:
    assert [deployment.id for deployment in CATALOG] == ["own", "@cf/their/model", "plain"]
    assert CATALOG.served_at(NOW) == list(CATALOG)


@pytest.mark.parametrize("model", ["", "OWN", "own ", "own\0", "../own", "gpt-5", "é" * 128])
def test_an_unknown_model_is_404_and_names_the_field(model: str) -> None:
    with pytest.raises(ModelNotFound, match="GET /v1/models") as told:
        CATALOG.deployment(model, NOW)
    assert (told.value.row.status, told.value.param) == (404, "model")


LIFE = """
[[models]]
id = "old"
engine = "fake"
aliases = ["older", "oldest"]
lifecycle = { deprecated_at = 2027-01-01, shutdown_at = 2027-02-01, successor = "@cf/a-b" }
[[models]]
id = "new"
engine = "fake"
aliases = ["@cf/a-b"]
"""
AGEING = catalog_of(parse(LIFE, "x")[0].models, {})
SHUT = int(datetime.datetime(2027, 2, 1, tzinfo=datetime.UTC).timestamp()) * 1_000_000


def test_an_alias_is_the_model_it_names() -> None:
    assert AGEING.deployment("older", NOW) is AGEING.deployment("old", NOW)
    assert AGEING.deployment("oldest", NOW).id == "old"


def test_a_model_is_served_to_the_day_of_its_end() -> None:
    assert AGEING.deployment("old", SHUT - 1).id == "old"
    assert [one.id for one in AGEING.served_at(SHUT - 1)] == ["old", "new"]
    assert [one.id for one in AGEING.served_at(SHUT)] == ["new"]


@pytest.mark.parametrize("name", ["old", "older"])
def test_after_its_end_it_is_404_and_says_what_to_use(name: str) -> None:
    with pytest.raises(ModelNotFound, match=r"2027-02-01; use '@cf/a-b' instead") as told:
        AGEING.deployment(name, SHUT)
    assert told.value.code == "model_not_found"


def test_clients_are_told_of_the_end_in_headers() -> None:
    """RFC 9745 and RFC 8594: a structured date, and an HTTP date."""
    assert AGEING.deployment("old", NOW).notices == {
        b"deprecation": b"@1798761600",
        b"sunset": b"Mon, 01 Feb 2027 00:00:00 GMT",
        b"link": b'</v1/models/@cf/a-b>; rel="successor-version"',
    }
    assert AGEING.deployment("new", NOW).notices == {}


THREE = """
[[models]]
id = "first"
aliases = ["one"]
engine = "fake"
fallback = ["second", "third"]

[[models]]
id = "second"
aliases = ["two"]
engine = "fake"

[[models]]
id = "third"
engine = "fake"
"""


def test_a_list_of_models_holds_for_names_lists_and_fallbacks() -> None:
    catalog = catalog_of(parse(THREE, "x")[0].models, {})
    first = catalog.deployment("one", NOW)
    for models, ids in (
        (None, ["first", "second", "third"]),
        (frozenset({"one", "third"}), ["first", "third"]),
        (frozenset({"first", "two"}), ["first", "second"]),
        (frozenset({"first"}), ["first"]),
        (frozenset[str](), []),
    ):
        assert [one.id for one in catalog.served_at(NOW, models)] == ids
        assert [one.id for one in catalog.fallbacks(first, NOW, models)] == [
            name for name in ids if name != "first"
        ]
        for name in ("first", "one", "second", "third", "none"):
            known = {"one": "first"}.get(name, name)
            if known in ids:
                assert catalog.deployment(name, NOW, models).id == known
            else:
                with pytest.raises(ModelNotFound, match=f"there is no model '{name}' for this key"):
                    catalog.deployment(name, NOW, models)


TRT = '[[models]]\nid = "m"\nengine = "tensorrt-llm"\ntrt = { guard = false }\n'
ATTACHED = '[[models]]\nid = "m"\nengine = "openai"\nurl = "http://x/v1"\nkind = "{kind}"\n'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (TRT + 'path = "here"\n', "here"),
        (TRT + 'path = "gone"\n', ""),  # with its server alone
        (TRT + 'path = "gone"\ntokenizer = "here"\n', "here"),
        (TRT, ""),
        (TRT.replace("false", "false, block_reuse = false") + 'path = "here"\n', ""),
        (TRT + 'path = "here"\ncache = "shared-accepted"\n', ""),
        (ATTACHED.format(kind="trtllm") + 'tokenizer = "here"\n', "here"),
        (ATTACHED.format(kind="trtllm") + 'tokenizer = "here"\ncache = "off"\n', ""),
        (ATTACHED.format(kind="trtllm"), ""),
        (ATTACHED.format(kind="vllm"), ""),
    ],
)
def test_plain_prompts_need_a_tokenizer_where_only_chats_take_salts(
    tmp_path: Path, text: str, found: str
) -> None:
    tokenizer_folder(tmp_path / "here")
    (deployment,) = catalog_of(parse(text, "")[0].models, {}, folder=tmp_path)
    assert deployment.tokenizer == (str(tmp_path / found) if found else "")
