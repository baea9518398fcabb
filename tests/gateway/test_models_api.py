"""GET /v1/models: what is told of each, in its views, at the caller's own prices."""

from __future__ import annotations

from pathlib import Path

from gateway.prices import parse_price
from tests.gateway.front import CHAT
from tests.gateway.shelf import SOON, models, served


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
            "backend": None,
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
        assert theirs["effective_from"] > "2026-11", "since it was deployed"
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
