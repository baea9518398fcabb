"""GET /v1/models: filters, and answers that haven't changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.etags import has_already
from tests.gateway.shelf import models, served


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
        ("?supported_parameters=temperature&supported_parameters[]=stop&q=own", ["own"]),
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
        ("?supported_parameters=", "supported_parameters"),
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
