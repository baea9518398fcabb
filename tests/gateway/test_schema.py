"""Clients' wire formats: what is understood, and that nothing unnamed reaches an engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from gateway.errors import BadRequest, Refusal, UnknownField, Unsupported
from gateway.fields import ChatFields, CompletionFields
from gateway.schema import Ask, Turn, decode_chat, decode_completion

USER = {"role": "user", "content": "hi"}
CHAT = {"model": "m", "messages": [USER]}
COMPLETION = {"model": "m", "prompt": "hi"}
ENGINE_FIELDS = {
    "model", "messages", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop", "stream",
}  # fmt: skip
Decode = Callable[[bytes], Ask]
DECODERS: list[Decode] = [decode_chat, decode_completion]


def chat(**changes: Any) -> Ask:
    return decode_chat(json.dumps(CHAT | changes).encode())


def completion(**changes: Any) -> Ask:
    return decode_completion(json.dumps(COMPLETION | changes).encode())


HONOURED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"max_tokens": 7}, {"max_tokens": 7}),
    ({"max_tokens": 2**31 - 1}, {"max_tokens": 2**31 - 1}),
    ({"temperature": 0}, {"temperature": 0.0}),
    ({"temperature": 2}, {"temperature": 2.0}),
    ({"top_p": 0.5}, {"top_p": 0.5}),
    ({"top_p": 1}, {"top_p": 1.0}),
    ({"seed": -1}, {"seed": -1}),
    ({"seed": 2**63 - 1}, {"seed": 2**63 - 1}),
    ({"seed": 0}, {"seed": 0}),
    ({"stop": "x"}, {"stop": ["x"]}),
    ({"stop": ["x", "yz"]}, {"stop": ["x", "yz"]}),
    ({"stop": []}, {}),
    ({"stream": True}, {"stream": True}),
    ({"stream": False}, {}),
    ({"stream": True, "stream_options": {"include_usage": True}}, {"stream": True}),
    ({"user": "u-1"}, {}),
    ({"n": 1}, {}),
    ({"logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0.0}, {}),
]


@pytest.mark.parametrize(("given", "sent"), HONOURED, ids=str)
def test_each_field_that_is_honoured_reaches_the_engine(
    given: dict[str, Any], sent: dict[str, Any]
) -> None:
    """On both routes; and what is harmless doesn't."""
    turns = [Turn("user", "hi")]
    assert chat(**given).engine_body() == {"model": "m", "messages": turns} | sent
    assert completion(**given).engine_body() == COMPLETION | sent


@pytest.mark.parametrize(
    "name",
    ["max_tokens", "temperature", "top_p", "seed", "stop", "stream", "stream_options", "n", "user",
     "frequency_penalty", "presence_penalty", "logit_bias"],
)  # fmt: skip
def test_null_is_the_same_as_absent(name: str) -> None:
    assert chat(**{name: None}) == chat()
    assert completion(**{name: None}) == completion()


HARMLESS_IN_CHAT: list[dict[str, Any]] = [
    {"metadata": {"a": "b"}}, {"store": True}, {"service_tier": "auto"}, {"safety_identifier": "s"},
    {"prompt_cache_key": "k"}, {"prompt_cache_retention": "24h"}, {"parallel_tool_calls": False},
    {"logprobs": False}, {"response_format": {"type": "text"}}, {"tools": []},
    {"tool_choice": "auto"}, {"tool_choice": "none"}, {"modalities": ["text"]},
    {"functions": []}, {"function_call": "none"}, {"reasoning_effort": "none"},
    {"verbosity": "medium"},
]  # fmt: skip


@pytest.mark.parametrize("given", HARMLESS_IN_CHAT, ids=str)
def test_a_documented_field_that_can_t_change_the_answer_is_ignored(given: dict[str, Any]) -> None:
    found = chat(**given)
    assert found.session == given.get("prompt_cache_key", "")
    found.session = ""
    assert found == chat()


def test_a_session_is_named_by_its_cache_key_or_its_user_and_no_engine_is_told() -> None:
    assert chat(user="u", prompt_cache_key="k").session == "k"
    assert (chat(user="u").session, completion(user="u").session) == ("u", "u")
    assert chat(user="u", prompt_cache_key="k").engine_body() == chat().engine_body()


CHANGING: list[tuple[Callable[..., Ask], dict[str, Any]]] = [
    (chat, {"n": 2}), (chat, {"n": 0}), (chat, {"frequency_penalty": 0.1}),
    (chat, {"presence_penalty": -1}), (chat, {"logit_bias": {"5": 1}}), (chat, {"logprobs": True}),
    (chat, {"top_logprobs": 0}), (chat, {"response_format": {"type": "json_object"}}),
    (chat, {"tools": [{"type": "function"}]}), (chat, {"tool_choice": "required"}),
    (chat, {"tool_choice": {"type": "function"}}), (chat, {"functions": [{}]}),
    (chat, {"modalities": ["audio"]}), (chat, {"audio": {}}), (chat, {"prediction": {}}),
    (chat, {"reasoning_effort": "high"}), (chat, {"web_search_options": {}}),
    (completion, {"best_of": 2}), (completion, {"echo": True}), (completion, {"logprobs": 0}),
    (completion, {"suffix": "x"}), (completion, {"n": 3}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("decode", "given"), CHANGING, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_a_value_that_would_change_the_answer_is_refused_by_name(
    decode: Callable[..., Ask], given: dict[str, Any]
) -> None:
    with pytest.raises(Unsupported) as told:
        decode(**given)
    assert told.value.param == next(iter(given))
    assert told.value.param in told.value.message


def test_true_is_not_one() -> None:
    """A boolean where a number belongs is a fault, even if Python thinks them equal."""
    for field in ({"n": True}, {"best_of": True}, {"seed": False}, {"temperature": True}):
        with pytest.raises(BadRequest):
            completion(**field)


def test_max_completion_tokens_wins_over_max_tokens() -> None:
    assert chat(max_completion_tokens=3, max_tokens=9).max_tokens == 3
    assert chat(max_completion_tokens=3).max_tokens == 3
    assert chat(max_completion_tokens=None, max_tokens=9).max_tokens == 9
    with pytest.raises(UnknownField):
        completion(max_completion_tokens=3)


@pytest.mark.parametrize("role", ["user", "system", "assistant"])
def test_a_role_stays(role: str) -> None:
    assert chat(messages=[{"role": role, "content": "x"}]).messages == [Turn(role, "x")]


def test_a_developer_is_the_system() -> None:
    assert chat(messages=[{"role": "developer", "content": "x"}]).messages == [Turn("system", "x")]


def test_parts_of_text_are_joined() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "text", "text": ""},
        {"type": "text", "text": "b"},
    ]
    assert chat(messages=[{"role": "user", "content": parts}]).messages == [Turn("user", "ab")]


def test_an_answer_of_ours_can_be_sent_back() -> None:
    ours: dict[str, Any] = {
        "role": "assistant",
        "content": "x",
        "refusal": None,
        "annotations": [],
        "tool_calls": [],
    }
    assert chat(messages=[USER, ours]).messages == [Turn("user", "hi"), Turn("assistant", "x")]


def test_an_empty_text_is_a_content() -> None:
    assert chat(messages=[{"role": "user", "content": ""}]).messages == [Turn("user", "")]


def test_control_tokens_in_content_stay_text() -> None:
    text = "<|im_end|>{{ ''.__class__ }}\0"
    assert chat(messages=[{"role": "user", "content": text}]).messages == [Turn("user", text)]


BAD_CONTENT: list[tuple[dict[str, Any], str]] = [
    ({"role": "user"}, ".content"),
    ({"role": "user", "content": None}, ".content"),
    ({"role": "user", "content": []}, ".content"),
    ({"role": "user", "content": 7}, ".content"),
    ({"role": "user", "content": [7]}, ".content[0]"),
    ({"role": "user", "content": [{"type": "text"}]}, ".content[0].text"),
    ({"role": "user", "content": [{"type": "text", "text": None}]}, ".content[0].text"),
    ({"role": "user", "content": [{"text": "x"}]}, ".content[0].type"),
    ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc"}}]},
     ".content[0].type"),
    ({"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "file", "file": {}}]},
     ".content[1].type"),
    ({"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}]},
     ".content[0].cache_control"),
    ({"role": "tool", "content": "x", "tool_call_id": "1"}, ".role"),
    ({"role": "", "content": "x"}, ".role"),
    ({"role": "user", "content": "x", "tool_calls": [{}]}, ".tool_calls"),
    ({"role": "user", "content": "x", "name": "bob"}, ".name"),
    ({"role": "user", "content": "x", "cache_salt": "s"}, ".cache_salt"),
    ({"content": "x"}, ".role"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "where"), BAD_CONTENT, ids=str)
def test_a_bad_message_is_refused_with_its_path(message: dict[str, Any], where: str) -> None:
    with pytest.raises(BadRequest) as told:
        chat(messages=[USER, message])
    assert told.value.param == f"messages[1]{where}"
    assert told.value.param in told.value.message


@pytest.mark.parametrize(
    ("prompt", "taken"),
    [("hi", "hi"), (["hi"], "hi"), ([1, 2], [1, 2]), ([[1, 2]], [1, 2]), ([0], [0])],
)
def test_a_prompt_is_text_or_ids_or_a_list_of_just_one(prompt: Any, taken: Any) -> None:
    assert completion(prompt=prompt).prompt == taken


@pytest.mark.parametrize(
    "prompt",
    ["", [], [""], [[]], ["a", "b"], [[1], [2]], [1, "a"], [1.5], [True], [-1], [2**31], [10**400],
     [None], None, 7, {}, [[["a"]]]],
    ids=repr,
)  # fmt: skip
def test_another_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(BadRequest) as told:
        completion(prompt=prompt)
    assert (told.value.param or "").startswith("prompt")


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    "body", [b"", b"{", b"nul", b"\xff", b'{"model":"\xff"}', b"x", b'{"model":"m",}', b"NaN"]
)
def test_what_isn_t_json_is_told_as_that(decode: Decode, body: bytes) -> None:
    with pytest.raises(BadRequest) as told:
        decode(body)
    assert told.value.code == "invalid_json"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=12,
)
BASES: list[dict[str, Any]] = [CHAT, COMPLETION, {}]
names = st.sampled_from(
    sorted({*ChatFields.__struct_fields__, *CompletionFields.__struct_fields__, "cache_salt", "x"})
)
bodies = st.one_of(
    st.binary(max_size=200),
    json_values.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(names, json_values, max_size=8).flatmap(
        lambda extra: st.sampled_from(BASES).map(lambda base: json.dumps(base | extra).encode())
    ),
)


@settings(max_examples=400)
@given(bodies)
def test_any_body_is_an_ask_or_a_refusal(body: bytes) -> None:
    """Nothing else is ever raised, and no field passes that isn't on the engine's list."""
    for decode in DECODERS:
        try:
            ask = decode(body)
        except Refusal as refused:
            msgspec.json.encode(refused.body())
            continue
        sent = json.loads(msgspec.json.encode(ask.engine_body()))
        assert set(sent) <= ENGINE_FIELDS
        for turn in sent.get("messages", []):
            assert set(turn) == {"role", "content"}


def test_usage_is_included_only_on_request() -> None:
    assert not chat(stream=True).include_usage
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage
    assert not chat(stream=True, stream_options={"include_usage": None}).include_usage
    with pytest.raises(BadRequest) as told:
        chat(stream_options={"include_usage": True})
    assert told.value.param == "stream_options"
