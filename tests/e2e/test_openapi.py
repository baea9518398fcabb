"""Every route does what the OpenAPI document says of it, whatever is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.openapi.public import public_document
from runtime.config.kinds import origin_fault
from tests.e2e.described import (
    NEGATIVE,
    POSITIVE,
    Call,
    Described,
    mended_query,
    misfit,
    operations,
)
from tests.stack import Stack, fake_config, running

PUBLIC = public_document()
LIMITS = """
[limits.per_key]
rpm = 1000000
tpm = 1000000000
concurrent = 100
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("described"), fake_config(more=LIMITS)) as found:
        found.cli("budgets", "create", "demo", "--limit", "1000")
        yield found


@pytest.fixture(scope="module")
def public(stack: Stack) -> Described:
    scopes = [
        f"--scope={name}" for name in ("inference", "models:read", "usage:read", "keys:write")
    ]
    key = stack.cli("keys", "create", "demo", *scopes).split()[-1]
    return Described(PUBLIC, stack.url, key)


@pytest.mark.parametrize(("path", "method"), operations(PUBLIC))
def test_what_fits_is_answered_as_the_document_says(
    public: Described, path: str, method: str
) -> None:
    assert set(public.hold(path, method, POSITIVE, mend)) == {200}


@pytest.mark.parametrize(
    ("path", "method"), operations(PUBLIC, that_take=("parameters", "requestBody"))
)
def test_what_does_not_fit_is_refused_as_the_document_says(
    public: Described, path: str, method: str
) -> None:
    assert all(status >= 400 for status in public.hold(path, method, NEGATIVE, misfit))


@pytest.mark.parametrize(("path", "method"), operations(PUBLIC))
@pytest.mark.parametrize("authorization", [None, "Bearer bh_live_x", "Basic eDp5"])
def test_a_key_is_asked_for_wherever_the_document_says_so(
    stack: Stack, path: str, method: str, authorization: str | None
) -> None:
    headers = {"authorization": authorization} if authorization else {}
    url = stack.url + path.replace("{id}", "echo")
    answer = httpx.request(method, url, headers=headers)
    is_open = PUBLIC["paths"][path][method].get("security") == []
    assert answer.status_code == (200 if is_open else 401)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
    ],
)
def test_the_events_of_a_stream_hold_what_the_document_says(
    public: Described, path: str, asked: dict[str, Any]
) -> None:
    body: Any = {
        "model": "echo",
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
    } | asked
    case = public.schema[path]["POST"].Case(body=body, media_type="application/json")
    answer = public.call(case)
    assert answer.text.endswith("data: [DONE]\n\n")
    assert '"usage":{"prompt_tokens"' in answer.text


def mend(case: Call) -> Call | None:
    """What no schema says: models that there are, times in order, a prompt that isn't empty."""
    path, query = case.path_parameters or {}, case.query or {}
    if "id" in path:
        path["id"] = "echo"
    query.pop("page", None)
    if query.get("bucket_width") != "1h":
        query.pop("limit", None)
    if isinstance(case.body, dict):
        case.body = mended(case.body)
    return case if mended_query(query) else None


def mended(body: dict[str, Any]) -> dict[str, Any]:
    body = whole(body)
    if "model" in body:
        body["model"] = "echo"
        body["max_tokens"] = min(body.get("max_tokens") or 8, 8)  # for these tests to be short
    if "prompt" in body:
        body["prompt"] = known(body["prompt"])
    body.pop("max_completion_tokens", None)
    if body.get("models"):
        body["models"] = ["echo"]
    if origin_fault(body.get("origin") or ""):
        body["origin"] = None
    for message in body.get("messages", ())[-1:]:  # what the fake engine echoes
        is_text = isinstance(message["content"], str)
        message["content"] += "x" if is_text else [{"type": "text", "text": "x"}]
    return body


def whole(value: Any) -> Any:
    """To JSON Schema 1.0 is an integer; to OpenAI's API and to ours it isn't."""
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def known(prompt: Any) -> Any:
    """Token ids that the fake engine's vocabulary has."""
    if isinstance(prompt, list):
        return [known(item) for item in prompt]
    return prompt % 256 if isinstance(prompt, int) else prompt
