"""GET /v1/models: its views, filters, ETag, the caller's own prices, aliases, and the schema."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from gateway.catalog.answers import ANSWERS
from gateway.model_routes import has_already
from gateway.prices import parse_price
from tests.gateway.front import CHAT, Gateway, gateway, stream_ok
from tests.runtime.upstream import Exchange

TODAY = datetime.datetime.now(datetime.UTC).date()
SOON = TODAY + datetime.timedelta(days=30)
CONFIG = f"""
[[models]]
id = "@cf/there"
engine = "openai"
url = "{{url}}"
aliases = ["there-latest"]
owned_by = "acme-labs"
released = 2024-11-01
card = "there.toml"
[models.price]
input = "0.10"
cached_input = "0.02"
output = "0.30"
effective_from = 2026-02-01

[[models]]
id = "plain/schema"
engine = "openai"
url = "{{url}}"
lifecycle = {{ deprecated_at = {TODAY}, shutdown_at = {SOON}, successor = "@cf/there" }}

[[models]]
id = "gone"
engine = "openai"
url = "{{url}}"
aliases = ["gone-too"]
lifecycle = {{ deprecated_at = 2024-01-01, shutdown_at = {TODAY}, successor = "@cf/there" }}

[[models]]
id = "own"
engine = "fake"
options = {{ max_context_tokens = 2048 }}

[[tenants]]
name = "contracted"
[[tenants.prices]]
model = "@cf/there"
currency = "EUR"
input = "0.05"
cached_input = "0.000001"
output = "1"
"""
CARD = """
name = "There 7B"
description = "Sees and Says."
context_length = 32768
max_output_tokens = 4096
tokenizer = "there-bpe"
quantization = "int4"
[architecture]
family = "llama"
parameters = 7000000000
input_modalities = ["text", "image"]
tokenizer = "Llama3"
instruct_type = "llama3"
[license]
spdx = "MIT"
[source]
repo = "acme-labs/there-7b"
revision = "0123abc"
"""


def served(folder: Path, answer: Any = stream_ok) -> Any:
    (folder / "there.toml").write_text(CARD)
    return gateway(folder, answer, CONFIG, ("acme", "contracted"))


async def models(gate: Gateway, query: str = "", tenant: str = "acme") -> dict[str, Any]:
    answer = await gate.http.get(f"/v1/models{query}", headers=gate.bearer(tenant))
    assert answer.status_code == 200, answer.text
    return {model["id"]: model for model in answer.json()["data"]}


async def test_the_whole_record_of_a_model(tmp_path: Path) -> None:
    async with served(tmp_path) as gate:
        found = await models(gate)
        assert list(found) == ["@cf/there", "there-latest", "plain/schema", "own"]
        there = found["@cf/there"]
        limits = there.pop("limits")
        assert limits == {
            "rpm": None,
            "tpm": None,
            "concurrent": None,
            "max_body_bytes": 4 * 1024 * 1024,
            "wall_s": 3600,
        }
        parameters = there.pop("supported_parameters")
        assert {"temperature", "stop", "max_tokens"} <= set(parameters)
        assert there.pop("price_version_id").startswith("pv_")
        assert there == {
            "id": "@cf/there",
            "object": "model",
            "created": 1_730_419_200,
            "owned_by": "acme-labs",
            "shutdown_date": None,
            "name": "There 7B",
            "description": "Sees and Says.",
            "canonical_id": "@cf/there",
            "alias_of": None,
            "task": "text-generation",
            "context_length": 32768,
            "max_output_tokens": 4096,
            "architecture": {
                "modality": "text+image->text",
                "input_modalities": ["text", "image"],
                "output_modalities": ["text"],
                "tokenizer": "Llama3",
                "instruct_type": "llama3",
                "family": "llama",
                "parameters": 7_000_000_000,
            },
            "supported_endpoints": ["/v1/chat/completions", "/v1/completions"],
            "pricing": {
                "prompt": "0.0000001",
                "completion": "0.0000003",
                "input_cache_read": "0.00000002",
                "request": "0",
            },
            "pricing_currency": "USD",
            "list_pricing": there["pricing"],
            "list_pricing_currency": "USD",
            "effective_from": "2026-02-01T00:00:00Z",
            "lifecycle": {
                "status": "stable",
                "deprecated_at": None,
                "shutdown_at": None,
                "successor": None,
            },
            "license": {"spdx": "MIT", "url": None},
            "source": {
                "hf_repo": "acme-labs/there-7b",
                "revision": "0123abc",
                "package": None,
                "file": None,
                "files": {},
            },
            "quantization": "int4",
            "dtype": None,
            "kv_dtype": None,
            "tokenizer": {"id": "there-bpe", "sha256": None},
            "integrity": {"policy": None, "weights_digest": None},
        }


async def test_what_nobody_said_is_null_and_not_guessed(tmp_path: Path) -> None:
    """The context of a server by URL is its card's; of an engine of ours, what it really takes."""
    async with served(tmp_path) as gate:
        found = await models(gate)
        plain, own = found["plain/schema"], found["own"]
        assert plain["name"] == "plain/schema"
        for key in ("context_length", "max_output_tokens", "quantization", "dtype", "kv_dtype"):
            assert plain[key] is None, key
        assert plain["license"] == {"spdx": None, "url": None}
        assert plain["architecture"]["parameters"] is None
        assert (own["context_length"], own["max_output_tokens"]) == (2048, 2048)


async def test_an_alias_is_listed_served_and_billed_as_its_model(tmp_path: Path) -> None:
    async with served(tmp_path) as gate:
        found = await models(gate)
        alias = found["there-latest"]
        assert (alias["alias_of"], alias["canonical_id"]) == ("@cf/there", "@cf/there")
        same = {"id", "alias_of"}
        assert {k: v for k, v in alias.items() if k not in same} == {
            k: v for k, v in found["@cf/there"].items() if k not in same
        }
        shown = await gate.http.get("/v1/models/there-latest")
        assert shown.json() == alias
        body = {"model": "there-latest", "messages": [{"role": "user", "content": "x"}]}
        answer = await gate.http.post(CHAT, json=body | {"stream": True})
        assert b'"model":"@cf/there"' in answer.content
        (row,) = gate.rows()
        assert row["model_id"] == "@cf/there"


async def test_the_caller_s_contract_is_shown_and_billed(tmp_path: Path) -> None:
    """In another currency, exactly; the list price stands beside it. Other tenants see theirs."""
    async with served(tmp_path) as gate:
        theirs = (await models(gate, tenant="contracted"))["@cf/there"]
        ours = (await models(gate))["@cf/there"]
        assert theirs["pricing"] == {
            "prompt": "0.00000005",
            "completion": "0.000001",
            "input_cache_read": "0.000000000001",
            "request": "0",
        }
        assert (theirs["pricing_currency"], theirs["list_pricing_currency"]) == ("EUR", "USD")
        assert theirs["list_pricing"] == ours["pricing"]
        assert theirs["effective_from"] is None, "of the contract, nobody said"
        assert theirs["price_version_id"] != ours["price_version_id"]
        body = {"model": "@cf/there", "messages": [{"role": "user", "content": "x"}]}
        for tenant in ("contracted", "acme"):
            await gate.http.post(CHAT, json=body | {"stream": True}, headers=gate.bearer(tenant))
        (one, other) = gate.rows()
        assert (one["currency"], one["output_price_pico"]) == ("EUR", parse_price("1"))
        assert one["amount_pico"] == 7 * parse_price("0.05") + 2 * parse_price("1")
        assert (other["currency"], other["output_price_pico"]) == ("USD", parse_price("0.30"))


async def test_the_version_of_a_price_is_the_same_while_the_price_is(tmp_path: Path) -> None:
    async with served(tmp_path) as gate:
        first = (await models(gate))["@cf/there"]["price_version_id"]
        assert (await models(gate))["there-latest"]["price_version_id"] == first
        assert (await models(gate))["own"]["price_version_id"] != first


async def test_views(tmp_path: Path) -> None:
    async with served(tmp_path) as gate:
        plain = (await models(gate, "?view=openai"))["plain/schema"]
        assert plain == {
            "id": "plain/schema",
            "object": "model",
            "created": 0,
            "owned_by": "bulkhead",
            "shutdown_date": SOON.isoformat(),
        }
        router = (await models(gate, "?view=openrouter"))["there-latest"]
        assert (router["canonical_slug"], router["alias_target"]) == ("@cf/there", "@cf/there")
        assert router["hugging_face_id"] == "acme-labs/there-7b"
        assert router["pricing"]["completion"] == "0.0000003"
        assert router["top_provider"] == {
            "context_length": 32768,
            "max_completion_tokens": 4096,
            "is_moderated": False,
        }
        shown = await gate.http.get("/v1/models/@cf/there", params={"view": "openrouter"})
        assert shown.json()["id"] == "@cf/there"


async def test_the_full_view_tells_of_health_from_what_this_process_saw(tmp_path: Path) -> None:
    async with served(tmp_path) as gate:
        assert "health" not in (await models(gate))["own"]
        full = await models(gate, "?view=full")
        assert full["own"]["health"] == {"status": "cold", "ttft_p50": None, "tps_p50": None}
        assert full["@cf/there"]["health"]["status"] is None, "nobody watches it"
        body = {"model": "@cf/there", "messages": [{"role": "user", "content": "x"}]}
        for _ in range(2):
            await gate.http.post(CHAT, json=body | {"stream": True})
        health = (await models(gate, "?view=full"))["there-latest"]["health"]
        assert 0 < health["ttft_p50"] < 60
        assert health["tps_p50"] > 0
        theirs = (await models(gate, "?view=full", tenant="contracted"))["@cf/there"]["health"]
        assert theirs == {"status": None, "ttft_p50": None, "tps_p50": None}, "it asked nothing"


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("?task=text-generation", ["@cf/there", "there-latest", "plain/schema", "own"]),
        ("?task=text-embeddings", []),
        ("?modality=image", ["@cf/there", "there-latest"]),
        ("?modality=text&q=SEES", ["@cf/there", "there-latest"]),
        ("?q=latest", ["there-latest"]),
        ("?q=", ["@cf/there", "there-latest", "plain/schema", "own"]),
        ("?supported_parameters=temperature,stop&q=own", ["own"]),
        ("?supported_parameters=tools", []),
        ("?supported_parameters=temperature,tools", []),
    ],
)
async def test_filters(tmp_path: Path, query: str, ids: list[str]) -> None:
    async with served(tmp_path) as gate:
        assert list(await models(gate, query)) == ids


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("?taks=x", "taks"),
        ("?task=", "task"),
        ("?task=sing", "task"),
        ("?modality=smell", "modality"),
        ("?supported_parameters=temperature,nope", "supported_parameters"),
        ("?view=huge", "view"),
        ("?q=a&q=b", "q"),
    ],
)
async def test_a_filter_that_isn_t_one_is_400_with_its_name(
    tmp_path: Path, query: str, param: str
) -> None:
    async with served(tmp_path) as gate:
        answer = await gate.http.get(f"/v1/models{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_an_unchanged_answer_is_304(tmp_path: Path) -> None:
    async with served(tmp_path) as gate:
        for path in ("/v1/models", "/v1/models/own", "/v1/models/own/schema"):
            first = await gate.http.get(path)
            assert first.headers["vary"] == "Authorization"
            assert "private" in first.headers["cache-control"]
            tag = first.headers["etag"]
            again = await gate.http.get(path, headers={"if-none-match": f'"x", W/{tag}'})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == tag
            assert "private" in again.headers["cache-control"]
            other = await gate.http.get(path, headers={"if-none-match": '"x"'})
            assert other.content == first.content
        mine = (await gate.http.get("/v1/models")).headers["etag"]
        theirs = await gate.http.get(
            "/v1/models", headers=gate.bearer("contracted") | {"if-none-match": mine}
        )
        assert theirs.status_code == 200, "another caller has other prices"


@pytest.mark.parametrize(
    ("header", "known"),
    [("", False), ('"a"', True), ('W/"a"', True), ('"b", "a"', True), ("*", True), ("a", False),
     ('"ab"', False)],
)  # fmt: skip
def test_if_none_match(header: str, known: bool) -> None:
    assert has_already(header, '"a"') is known


async def test_a_deprecated_model_says_so_in_headers(tmp_path: Path) -> None:
    """In its record and in answers, streams too; other models say nothing."""
    async with served(tmp_path) as gate:
        plain = (await models(gate))["plain/schema"]
        assert plain["lifecycle"]["status"] == "deprecated"
        assert plain["lifecycle"]["shutdown_at"] == f"{SOON}T00:00:00Z"
        body = {"model": "plain/schema", "messages": [{"role": "user", "content": "x"}]}
        answers = [
            await gate.http.get("/v1/models/plain/schema"),
            await gate.http.post(CHAT, json=body | {"stream": True}),
        ]
        midnight = datetime.datetime.combine(TODAY, datetime.time(), datetime.UTC)
        for answer in answers:
            assert answer.status_code == 200
            assert answer.headers["deprecation"] == f"@{int(midnight.timestamp())}"
            assert answer.headers["sunset"].endswith("00:00:00 GMT")
            assert answer.headers["link"] == '</v1/models/@cf/there>; rel="successor-version"'
        other = await gate.http.get("/v1/models/own")
        assert {"deprecation", "sunset", "link"}.isdisjoint(other.headers)


@pytest.mark.parametrize("name", ["gone", "gone-too"])
async def test_a_model_that_was_shut_down_is_404(tmp_path: Path, name: str) -> None:
    async with served(tmp_path) as gate:
        body = {"model": name, "messages": [{"role": "user", "content": "x"}]}
        for answer in (
            await gate.http.post(CHAT, json=body),
            await gate.http.get(f"/v1/models/{name}"),
            await gate.http.get(f"/v1/models/{name}/schema"),
        ):
            assert answer.status_code == 404
            error = answer.json()["error"]
            assert error["code"] == "model_not_found"
            assert "use '@cf/there' instead" in error["message"]
        assert gate.rows() == []


async def test_the_schema_of_a_model_whatever_its_name(tmp_path: Path) -> None:
    async with served(tmp_path) as gate:
        for name in ("own", "there-latest", "@cf/there", "plain/schema"):
            answer = await gate.http.get(f"/v1/models/{name}/schema")
            assert answer.status_code == 200, name
            found = answer.json()
            assert found["object"] == "model.schema"
            for path, parts in found["endpoints"].items():
                assert path in ANSWERS
                for part in ("input", "output", "stream"):
                    jsonschema.Draft202012Validator.check_schema(parts[part])
        assert (await gate.http.get("/v1/models/plain")).status_code == 404
        assert (await gate.http.get("/v1/models/plain/schema?x=1")).status_code == 400
        refused = await gate.http.get("/v1/models/own/schema?view=x")
        assert refused.status_code == 400
        assert "view: unknown parameter; this route takes none" in refused.text
        assert (await gate.http.get("/v1/models/nope/schema")).status_code == 404


async def test_an_answer_fits_the_schema_that_was_told(tmp_path: Path) -> None:
    async def whole(exchange: Exchange) -> None:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "ho"},
            "finish_reason": "stop",
        }
        usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
        answer = {"id": "x", "object": "chat.completion", "created": 1, "choices": [choice]}
        await exchange.reply_json(200, answer | {"usage": usage})

    async with served(tmp_path, whole) as gate:
        schema = (await gate.http.get("/v1/models/@cf/there/schema")).json()
        body = {"model": "@cf/there", "messages": [{"role": "user", "content": "x"}]}
        answer = await gate.http.post(CHAT, json=body)
        assert answer.status_code == 200
        jsonschema.validate(answer.json(), schema["endpoints"][CHAT]["output"])
        msgspec.convert(answer.json(), ANSWERS[CHAT][0])
