"""An OpenAPI 3.1 document from operations, which name the types of what they take and answer.

Schemas come from the types themselves, so a document can't say of a field what its type doesn't.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.version import version

Schema = dict[str, Any]

JSON = "application/json"
REFS = "#/components/schemas/"
REQUEST_ID = {"x-request-id": {"schema": {"type": "string"}, "required": True}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One route and method. `answers`: responses of success, by status, without their headers."""

    method: str
    path: str  # as OpenAPI writes it: "/v1/models/{id}"
    name: str  # its operationId
    summary: str
    answers: dict[int, Schema]
    refusals: tuple[type[Exception], ...]
    parameters: tuple[Schema, ...] = ()
    body: Schema | None = None  # its requestBody
    is_open: bool = False  # no key is needed


Refuse = Callable[[type[Exception]], tuple[int, list[str]]]  # status, and names to branch on
Told = Callable[[list[str]], Schema]  # the content of a refusal that has one of these names


@dataclass(frozen=True, slots=True)
class Refusals:
    """How one API refuses: the row of a refusal, and the content of an answer with some rows."""

    row: Refuse
    content: Told


def document(
    title: str, key: str, operations: Iterable[Operation], types: list[Any], refusals: Refusals
) -> Schema:
    """The whole document. `key` says of whom the bearer key is; `types` are all that are named."""
    paths: dict[str, Schema] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(
            operation, refusals
        )
    _, schemas = msgspec.json.schema_components(types, ref_template=REFS + "{name}")
    found = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version()},
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": key}},
        },
    }
    whole: Schema = _hoisted(found, schemas)
    return whole


def json_answer(kind: Any, description: str = "The answer.") -> Schema:
    """A response of one type of JSON."""
    return {"description": description, "content": json_content(kind)}


def json_content(kind: Any, media_type: str = JSON) -> Schema:
    """One type, or a schema made elsewhere, as a body."""
    return {media_type: {"schema": kind if isinstance(kind, dict) else ref(kind)}}


def ref(kind: Any) -> Schema:
    """The schema of a type, by its name."""
    schemas, _ = msgspec.json.schema_components([kind], ref_template=REFS + "{name}")
    found: Schema = schemas[0]
    return found


def with_more(kind: Any, **more: Schema) -> Schema:
    """The schema of a type, with members that a route adds to it."""
    _, schemas = msgspec.json.schema_components([kind], ref_template=REFS + "{name}")
    own: Schema = schemas[kind.__name__]
    required = [*more, *own.get("required", [])]
    return own | {"properties": more | own["properties"], "required": required}


def listing(item: Schema, **more: Schema) -> Schema:
    """A list of them, as all lists are sent."""
    members = {"object": {"const": "list"}, "data": {"type": "array", "items": item}} | more
    return {"type": "object", "properties": members, "required": list(members)}


def query(name: str, schema: Schema, description: str) -> Schema:
    """A parameter of the query, which may be left out."""
    return {"name": name, "in": "query", "description": description, "schema": schema}


def in_path(name: str, description: str) -> Schema:
    """A part of the path."""
    schema = {"type": "string", "minLength": 1}
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": schema,
    }


def summary_of(kind: type) -> str:
    """The first sentence of a type's docstring."""
    return (kind.__doc__ or "").partition("\n")[0]


def _operation(operation: Operation, refusals: Refusals) -> Schema:
    found: Schema = {"operationId": operation.name, "summary": operation.summary}
    if operation.is_open:
        found["security"] = []
    if operation.parameters:
        found["parameters"] = list(operation.parameters)
    if operation.body is not None:
        found["requestBody"] = operation.body
    answers = operation.answers | _refused(operation.refusals, refusals)
    found["responses"] = {
        str(status): answer | {"headers": REQUEST_ID | answer.get("headers", {})}
        for status, answer in sorted(answers.items())
    }
    return found


def _refused(kinds: Iterable[type[Exception]], refusals: Refusals) -> dict[int, Schema]:
    """A response for each status, which tells all the names that come with it."""
    told: dict[int, tuple[list[str], list[str]]] = {}
    for kind in kinds:
        status, names = refusals.row(kind)
        known, texts = told.setdefault(status, ([], []))
        known += names
        texts.append(f"`{'`, `'.join(names)}`: {summary_of(kind)}")
    return {
        status: {"description": "\n".join(texts), "content": refusals.content(names)}
        for status, (names, texts) in told.items()
    }


def _hoisted(node: Any, schemas: dict[str, Schema]) -> Any:
    """The same, with the types that a schema brings along among those of the document."""
    if isinstance(node, list):
        return [_hoisted(item, schemas) for item in node]
    if not isinstance(node, dict):
        return node
    for name, schema in node.get("$defs", {}).items():
        moved = _hoisted(schema, schemas)
        assert schemas.setdefault(name, moved) == moved, f"two types are called {name}"
    return {
        key: re.sub(r"^#/\$defs/", REFS, value) if key == "$ref" else _hoisted(value, schemas)
        for key, value in node.items()
        if key not in ("$defs", "$schema")
    }
