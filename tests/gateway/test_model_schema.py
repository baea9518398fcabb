"""The schemas that the catalog tells of: a body fits one exactly when it is accepted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from hypothesis import given, strategies as st

from gateway.catalog.schema import endpoint_schemas
from gateway.errors import BadRequest
from gateway.fields import HARMLESS, HARMLESS_IN_MESSAGE, IGNORED, ChatFields, CompletionFields
from gateway.schema import ADDRESS, ENDPOINTS, Ask, supported_parameters

CHAT, TEXT = ENDPOINTS
SCHEMAS = endpoint_schemas()
# To JSON Schema 1.0 is an integer. To OpenAI's API and to ours it isn't, and no schema can say so.
TYPES = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
    "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
)
Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, type_checker=TYPES)
VALIDATORS = {path: Validator(schemas["input"]) for path, schemas in SCHEMAS.items()}
MESSAGES = [{"role": "user", "content": "hi"}]
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": MESSAGES},
    TEXT: {"model": "m", "prompt": "hi"},
}

numbers = st.sampled_from([0, 1, 2, -1, 0.0, 1.0, 0.5, 1.5, 2.5, 2**31, 2**63])
texts = st.sampled_from(["", "x", "none", "auto", "text", "medium", "x" * 257])
scalars = st.one_of(st.sampled_from([None, True, False]), numbers, texts)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(
            st.sampled_from(["type", "text", "include_usage", "a", "role", "content"]),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)


def accepts(path: str, body: object) -> bool:
    try:
        ENDPOINTS[path].decode(json.dumps(body).encode())
    except BadRequest:
        return False
    return True


def fits(path: str, body: object) -> bool:
    return bool(VALIDATORS[path].is_valid(body))


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("part", ["input", "output", "stream"])
def test_every_schema_is_one(path: str, part: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[path][part])


@pytest.mark.parametrize("path", ENDPOINTS)
def test_an_integer_is_written_without_a_point(path: str) -> None:
    body = BASE[path] | {"max_tokens": 1.0}
    assert not accepts(path, body)
    assert not fits(path, body)


@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_plain_request_fits(path: str) -> None:
    assert accepts(path, BASE[path])
    assert fits(path, BASE[path])


@given(st.data())
@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_body_fits_exactly_when_it_is_accepted(path: str, data: st.DataObject) -> None:
    names = [*ENDPOINTS[path].fields.__struct_fields__, "unheard_of"]
    chosen = data.draw(st.lists(st.sampled_from(names), max_size=3, unique=True))
    body = BASE[path] | {name: data.draw(values, label=name) for name in chosen}
    assert fits(path, body) == accepts(path, body), body


@given(st.data())
def test_a_message_fits_exactly_when_it_is_accepted(data: st.DataObject) -> None:
    names = ["role", "content", *HARMLESS_IN_MESSAGE, "unheard_of"]
    chosen = data.draw(st.lists(st.sampled_from(names), max_size=3, unique=True))
    part = st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "image_url"]), "text": st.sampled_from(["", "x", 1])}
    )
    some = st.one_of(values, st.sampled_from(["user", "developer"]), st.lists(part, max_size=2))
    message = MESSAGES[0] | {name: data.draw(some, label=name) for name in chosen}
    body = BASE[CHAT] | {"messages": [message]}
    assert fits(CHAT, body) == accepts(CHAT, body), body


@pytest.mark.parametrize(
    "prompt",
    ["", "x", [], [1, 2], ["x"], [""], ["x", "y"], [[1]], [[]], [[1], [2]], [-1], [1.5], [True],
     [2**31], [[["x"]]], None, 1],
)  # fmt: skip
def test_a_prompt_fits_exactly_when_it_is_accepted(prompt: object) -> None:
    body = {"model": "m", "prompt": prompt}
    assert fits(TEXT, body) == accepts(TEXT, body)


EXAMPLES: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.5,
    "seed": 1,
    "stop": ["x"],
    "max_tokens": 3,
    "max_completion_tokens": 3,
    "stream": True,
    "stream_options": {"include_usage": True},
    "user": "u",
    "metadata": {"a": "b"},
    "store": True,
    "service_tier": "auto",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "parallel_tool_calls": True,
}


@pytest.mark.parametrize(("path", "kind"), [(CHAT, ChatFields), (TEXT, CompletionFields)])
def test_supported_parameters_are_those_that_change_what_is_asked(path: str, kind: Any) -> None:
    """By what they do, not by what is written of them: so the list can't go stale."""
    decode: Callable[[bytes], Ask] = ENDPOINTS[path].decode
    base = BASE[path] | {"stream": True}
    plain = decode(json.dumps(base).encode())
    for name in set(kind.__struct_fields__) - ADDRESS - set(HARMLESS):
        value = EXAMPLES[name]
        without = base | {"stream": False} if name == "stream" else base
        asked = decode(json.dumps(without | {name: value}).encode())
        before = decode(json.dumps(without).encode()) if name == "stream" else plain
        asked.session = before.session  # where it goes is no part of the answer
        assert (asked != before) == (name in supported_parameters()), name
        assert (asked == before) == (name in IGNORED), name


def test_what_is_refused_isn_t_called_supported() -> None:
    assert set(supported_parameters()).isdisjoint(HARMLESS)
    assert {"temperature", "max_tokens", "stop", "seed", "top_p"} <= set(supported_parameters())
