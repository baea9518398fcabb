"""The OpenAPI document of `/v1`: it has every route and every error, and is what is served."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from msgspec import ValidationError, convert
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from gateway.errors import MORE_CODES, TABLE
from gateway.identity.tokens import TokenFields
from gateway.openapi.public import public_document
from gateway.openapi.refused import COMPLETION
from gateway.v1 import ROUTES
from tests.gateway.front import gateway, stream_ok

DOCUMENT = public_document()
OF_A_MODEL = {("/v1/models/{id}", "get"), ("/v1/models/{id}/prices", "get"),
              ("/v1/models/{id}/schema", "get")}  # fmt: skip
OPERATIONS = {(path, method) for path, item in DOCUMENT["paths"].items() for method in item}


def test_it_has_every_route_and_no_other() -> None:
    assert {(path, method.lower()) for path, (method, _) in ROUTES.items()} == (
        OPERATIONS - OF_A_MODEL
    )
    assert OF_A_MODEL <= OPERATIONS


def test_it_is_an_openapi_document_whose_references_lead_somewhere() -> None:
    OPENAPI_31_VALIDATOR.validate(DOCUMENT)
    known = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert references(DOCUMENT) == known
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def references(node: Any) -> set[str]:
    if isinstance(node, list):
        return set().union(*map(references, node))
    if not isinstance(node, dict):
        return set()
    own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
    return own.union(*map(references, node.values()))


def test_every_error_is_an_answer_of_some_route() -> None:
    """A completion may meet all of them; each is told with its status, and says what it is."""
    assert set(COMPLETION) == set(TABLE)
    for path in ("/v1/chat/completions", "/v1/completions"):
        told = codes(DOCUMENT["paths"][path]["post"])
        for kind, row in TABLE.items():
            assert {row.code, *MORE_CODES.get(kind, ())} <= told[row.status], kind


@pytest.mark.parametrize(("path", "method"), sorted(OPERATIONS))
def test_no_answer_has_a_code_of_another_status(path: str, method: str) -> None:
    status_of = {row.code: row.status for row in TABLE.values()}
    for kind, more in MORE_CODES.items():
        status_of |= dict.fromkeys(more, TABLE[kind].status)
    for status, found in codes(DOCUMENT["paths"][path][method]).items():
        assert {status_of[code] for code in found} == {status}


def codes(operation: dict[str, Any]) -> dict[int, set[str]]:
    return {
        int(status): set(
            answer["content"]["application/json"]["schema"]["properties"]["error"]["properties"][
                "code"
            ]["enum"]
        )
        for status, answer in operation["responses"].items()
        if int(status) >= 400
    }


async def test_it_is_served_to_everybody_and_only_once(tmp_path: Path) -> None:
    async with gateway(tmp_path, stream_ok) as gate:
        nobody = {"authorization": ""}
        answer = await gate.http.get("/v1/openapi.json", headers=nobody)
        assert answer.json() == DOCUMENT
        tag = {"if-none-match": answer.headers["etag"]}
        again = await gate.http.get("/v1/openapi.json", headers=nobody | tag)
        assert (again.status_code, again.content) == (304, b"")
        asked = await gate.http.get("/v1/openapi.json?x=1", headers=nobody)
        assert (asked.status_code, asked.json()["error"]["param"]) == (400, "x")


def test_patterns_end_where_text_ends_for_python_and_for_javascript() -> None:
    """`\\Z` is a letter to JSON Schema, and to Python `$` comes before a last newline, too."""
    properties = DOCUMENT["components"]["schemas"]["TokenFields"]["properties"]
    pattern = next(kind["pattern"] for kind in properties["origin"]["anyOf"] if "pattern" in kind)
    assert "\\Z" not in pattern
    for origin, fits in (("https://a.example", True), ("https://a.example\n", False)):
        assert bool(re.search(pattern, origin)) is fits
        if fits:
            assert convert({"origin": origin}, TokenFields).origin == origin
        else:
            with pytest.raises(ValidationError):
                convert({"origin": origin}, TokenFields)
