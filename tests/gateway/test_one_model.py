"""One model: what tells of its end, and its schema."""

from __future__ import annotations

import datetime
from pathlib import Path

import jsonschema
import msgspec
import pytest

from gateway.catalog.answers import ANSWERS
from tests.gateway.front import CHAT
from tests.gateway.shelf import SOON, TODAY, models, served
from tests.runtime.upstream import Exchange


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
