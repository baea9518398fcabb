"""What an endpoint takes and gives, as JSON Schema, made from the types that requests are read by.

The types say less than `schema` asks for: which values of a field are harmless, what a prompt may
be. That is added here, so that a body fits the schema exactly when it is accepted.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from gateway.catalog.answers import ANSWERS
from gateway.fields import HARMLESS, HARMLESS_IN_MESSAGE, MAX_INT32, ChatMessage, CommonFields
from gateway.schema import ENDPOINTS, ROLES

Schema = dict[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
TEXT = {"type": "string", "minLength": 1}
TOKEN_IDS = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": MAX_INT32},
    "minItems": 1,
}
ONE = {"type": "array", "minItems": 1, "maxItems": 1}
PROMPT = {"anyOf": [TEXT, TOKEN_IDS, ONE | {"items": {"anyOf": [TEXT, TOKEN_IDS]}}]}
OPTIONS_NEED_A_STREAM = {
    "if": {"properties": {"stream_options": {"type": "object"}}, "required": ["stream_options"]},
    "then": {"properties": {"stream": {"const": True}}, "required": ["stream"]},
}


@functools.cache
def endpoint_schemas() -> dict[str, Schema]:
    """Of each endpoint: `input`, `output`, and `stream`, which is one event of a stream."""
    found = {}
    for path, endpoint in ENDPOINTS.items():
        whole, chunk = ANSWERS[path]
        found[path] = {
            "input": _input(endpoint.fields),
            "output": _schema(whole),
            "stream": _schema(chunk),
        }
    return found


def _schema(kind: type[msgspec.Struct]) -> Schema:
    return {"$schema": DRAFT} | msgspec.json.schema(kind)


def _input(kind: type[CommonFields]) -> Schema:
    schema = _schema(kind)
    types = schema["$defs"]
    body = types[kind.__name__]
    _narrow(kind, body, HARMLESS)
    _forbid_empty_stops(body["properties"]["stop"])
    body.update(OPTIONS_NEED_A_STREAM)
    if "prompt" in body["properties"]:
        body["properties"]["prompt"] = PROMPT
    if message := types.get(ChatMessage.__name__):
        _narrow_message(message, types["TextPart"])
    return schema


def _narrow_message(message: Schema, part: Schema) -> None:
    _narrow(ChatMessage, message, HARMLESS_IN_MESSAGE)
    message["properties"]["role"] = {"enum": list(ROLES)}
    parts = {"type": "array", "items": {"$ref": "#/$defs/TextPart"}, "minItems": 1}
    message["properties"]["content"] = {"anyOf": [{"type": "string"}, parts]}
    message["required"] = ["role", "content"]
    part["properties"]["type"] = {"const": "text"}
    part["required"] = ["type", "text"]


def _narrow(kind: type[msgspec.Struct], schema: Schema, harmless: dict[str, Any]) -> None:
    """The fields that no engine honours take the values that change nothing, and no others."""
    for field in msgspec.structs.fields(kind):
        if field.encode_name in harmless:
            fitting = [v for v in harmless[field.encode_name] if _fits(v, field.type)]
            schema["properties"][field.encode_name] = {"enum": [None, *fitting], "default": None}


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _forbid_empty_stops(stop: Schema) -> None:
    for choice in stop["anyOf"]:
        texts = choice.get("items", choice)
        if texts.get("type") == "string":
            texts["minLength"] = 1
