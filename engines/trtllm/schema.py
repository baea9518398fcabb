"""Settings held against a JSON schema as pydantic writes them: as much of it as that takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Faults = Iterator[tuple[str, str]]
Schema = Mapping[str, Any]
TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (float, int),
    "boolean": (bool,),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def faults(value: Any, schema: Schema) -> Faults:
    """What the schema doesn't allow, as (path, reason)."""
    return _faults(value, schema, schema.get("$defs", {}), "")


def _faults(value: Any, schema: Schema, defs: Schema, path: str) -> Faults:
    while "$ref" in schema:
        schema = defs.get(schema["$ref"].rpartition("/")[2], {})
    for part in schema.get("allOf", ()):
        yield from _faults(value, part, defs, path)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        yield from _closest([list(_faults(value, choice, defs, path)) for choice in choices], path)
    elif not _is_a(schema.get("type"), value):
        yield path, f"expected {schema['type']}, found {value!r}"
    elif (allowed := schema.get("enum", [schema.get("const", value)])) and value not in allowed:
        yield path, f"expected one of {', '.join(map(str, allowed))}, found {value!r}"
    elif isinstance(value, dict) and "properties" in schema:
        for name, one in value.items():
            inner = f"{path}.{name}" if path else name
            if name in schema["properties"]:
                yield from _faults(one, schema["properties"][name], defs, inner)
            elif schema.get("additionalProperties", True) is False:
                yield inner, "is no key that this release has, as recorded"


def _closest(found: list[list[tuple[str, str]]], path: str) -> Faults:
    """Those of the choice that was probably meant: none, or what lies deepest."""

    def meant(faults: list[tuple[str, str]]) -> bool:
        return all(where != path for where, _ in faults)

    yield from min(found, key=lambda faults: (bool(faults), not meant(faults), len(faults)))


def _is_a(kind: object, value: Any) -> bool:
    """TensorRT-LLM writes Python's types for some, as `Optional[object]`: of those all is taken."""
    kinds = TYPES.get(kind) if isinstance(kind, str) else None
    if kinds is None:
        return True
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
