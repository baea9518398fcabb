"""Bad input: a 4xx that names the place, and an engine that never heard of it."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest

from tests.stack import Stack

OK = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}


def chat(**changes: Any) -> bytes:
    return json.dumps(OK | changes).encode()


BAD: list[tuple[str, bytes, int, str | None, str]] = [
    ("no body", b"", 400, None, "invalid_json"),
    ("not JSON", b"{", 400, None, "invalid_json"),
    ("an array", b"[]", 400, None, "invalid_value"),
    ("deep nesting", b"[" * 100_000, 400, None, "invalid_value"),
    ("deep nesting in a field", b'{"tools":' + b"[" * 100_000, 400, None, "invalid_json"),
    (
        "invalid UTF-8",
        b'{"model":"echo","messages":[{"role":"user","content":"\xff"}]}',
        400,
        None,
        "invalid_json",
    ),
    (
        "half a surrogate",
        b'{"model":"echo","messages":[{"role":"user","content":"\\ud800"}]}',
        400,
        None,
        "invalid_json",
    ),
    ("no messages", chat(messages=[]), 400, "messages", "invalid_value"),
    ("messages of a wrong type", chat(messages="hi"), 400, "messages", "invalid_value"),
    ("null messages", chat(messages=None), 400, "messages", "invalid_value"),
    (
        "a number as content",
        chat(messages=[{"role": "user", "content": 7}]),
        400,
        "messages[0].content",
        "invalid_value",
    ),
    (
        "an unknown role",
        chat(messages=[{"role": "root", "content": "x"}]),
        400,
        "messages[0].role",
        "invalid_value",
    ),
    ("no content", chat(messages=[{"role": "user"}]), 400, "messages[0].content", "invalid_value"),
    (
        "an image",
        chat(
            messages=[
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}],
                }
            ]
        ),
        400,
        "messages[0].content[0].type",
        "unsupported_parameter",
    ),
    (
        "no model",
        b'{"messages":[{"role":"user","content":"x"}]}',
        400,
        "model",
        "missing_required_parameter",
    ),
    ("an unknown model", chat(model="gpt-5"), 404, "model", "model_not_found"),
    ("a huge integer", chat(max_tokens=10**400), 400, "max_tokens", "invalid_value"),
    ("a float as count", chat(max_tokens=1e30), 400, "max_tokens", "invalid_value"),
    ("no tokens", chat(max_tokens=0), 400, "max_tokens", "invalid_value"),
    ("fewer than no tokens", chat(max_tokens=-1), 400, "max_tokens", "invalid_value"),
    (
        "an infinite temperature",
        b'{"temperature":1e999,' + chat()[1:],
        400,
        "temperature",
        "invalid_value",
    ),
    ("NaN", b'{"temperature":NaN,' + chat()[1:], 400, None, "invalid_json"),
    ("too hot", chat(temperature=2.1), 400, "temperature", "invalid_value"),
    ("a boolean as number", chat(temperature=True), 400, "temperature", "invalid_value"),
    ("top_p of nothing", chat(top_p=0), 400, "top_p", "invalid_value"),
    ("a seed over 64 bits", chat(seed=2**64), 400, "seed", "invalid_value"),
    ("many answers", chat(n=10**9), 400, "n", "unsupported_parameter"),
    (
        "tools",
        chat(tools=[{"type": "function", "function": {"name": "f"}}]),
        400,
        "tools",
        "unsupported_parameter",
    ),
    (
        "a grammar",
        chat(response_format={"type": "json_object"}),
        400,
        "response_format",
        "unsupported_parameter",
    ),
    ("logprobs", chat(logprobs=True), 400, "logprobs", "unsupported_parameter"),
    ("an empty stop", chat(stop=""), 400, "stop", "invalid_value"),
    ("five stops", chat(stop=list("abcde")), 400, "stop", "invalid_value"),
    (
        "stream options without a stream",
        chat(stream_options={"include_usage": True}),
        400,
        "stream_options",
        "invalid_value",
    ),
    (
        "an unknown stream option",
        chat(stream=True, stream_options={"x": 1}),
        400,
        "stream_options.x",
        "unknown_parameter",
    ),
    (
        "an unknown message field",
        chat(messages=[{"role": "user", "content": "x", "id": 1}]),
        400,
        "messages[0].id",
        "unknown_parameter",
    ),
    (
        "more than the context",
        chat(messages=[{"role": "user", "content": "x" * 9000}]),
        400,
        "messages",
        "context_length_exceeded",
    ),
]
ENGINE_FIELDS = [
    "cache_salt", "extra_key", "kv_transfer_params", "disaggregated_params", "transfer_id",
    "bootstrap_room", "id_slot", "prompt_embeds", "chat_template", "chat_template_kwargs",
    "domain", "tag", "cache_prompt", "guided_json", "priority", "lora", "ignore_eos", "best_of",
]  # fmt: skip


def post(stack: Stack, body: bytes, path: str = "/v1/chat/completions") -> httpx.Response:
    with stack.client() as client:
        return client.post(path, content=body)


def assert_refusal(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """OpenAI's error object, all four keys, with this status and code."""
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert answer.headers["x-request-id"].startswith("req_")
    return error


@pytest.fixture(autouse=True)
def _the_engine_stays_untouched(fake_stack: Stack) -> Any:
    before = fake_stack.host_stats()
    yield
    assert fake_stack.host_stats() == before


@pytest.mark.parametrize(("body", "status", "param", "code"), [b[1:] for b in BAD],
                         ids=[b[0] for b in BAD])  # fmt: skip
def test_it_is_refused_with_its_place(
    fake_stack: Stack, body: bytes, status: int, param: str | None, code: str
) -> None:
    assert assert_refusal(post(fake_stack, body), status, code)["param"] == param


@pytest.mark.parametrize("name", ENGINE_FIELDS)
def test_engine_fields_are_refused_by_name(fake_stack: Stack, name: str) -> None:
    """No client writes to an engine what isn't in the schema."""
    error = assert_refusal(post(fake_stack, chat(**{name: "x"})), 400, "unknown_parameter")
    assert error["param"] == name


def test_documented_fields_that_change_nothing_are_accepted(fake_stack: Stack) -> None:
    """They pass the schema: the request gets as far as its unknown model."""
    harmless = {
        "user": "u", "metadata": {"a": "b"}, "store": True, "n": 1, "logit_bias": {}, "tools": [],
        "presence_penalty": 0, "frequency_penalty": 0.0, "response_format": {"type": "text"},
        "logprobs": False, "service_tier": "auto", "parallel_tool_calls": True, "stop": None,
        "safety_identifier": "x", "prompt_cache_key": "k", "modalities": ["text"],
    }  # fmt: skip
    assert_refusal(post(fake_stack, chat(model="none", **harmless)), 404, "model_not_found")


def test_a_large_body_is_refused_before_it_is_read(fake_stack: Stack) -> None:
    """The answer comes while the body is still being announced, or as soon as it is too long."""
    with socket.create_connection(("127.0.0.1", fake_stack.port)) as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
            + f"authorization: Bearer {fake_stack.key}\r\n".encode()
            + b"content-length: 99999999\r\n\r\n"
        )
        sock.settimeout(5)
        assert b" 413 " in sock.recv(200)
    big = post(fake_stack, chat(messages=[{"role": "user", "content": "x" * (4 * 2**20)}]))
    assert_refusal(big, 413, "request_too_large")


def test_after_a_body_that_was_too_large_the_next_request_is_answered(fake_stack: Stack) -> None:
    """What is left of such a body ends its connection; the client is told, and opens another."""
    large = b" " * (4 * 2**20 + 1)
    with fake_stack.client() as client:
        for _ in range(10):
            big = client.post("/v1/chat/completions", content=large)
            assert (big.status_code, big.headers["connection"]) == (413, "close")
            assert client.get("/v1/models").status_code == 200


def test_a_chunked_body_is_counted_as_it_comes(fake_stack: Stack) -> None:
    """No length is declared, so the limit is met while reading."""
    with socket.create_connection(("127.0.0.1", fake_stack.port)) as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
            + f"authorization: Bearer {fake_stack.key}\r\n".encode()
            + b"transfer-encoding: chunked\r\n\r\n"
        )
        sock.settimeout(5)
        sent = 0
        try:
            while sent < 8 * 2**20:
                sock.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                sent += 65536
        except OSError:
            pass  # the server stopped reading
        assert sent < 8 * 2**20 or b" 413 " in sock.recv(200)


def test_a_compressed_body_is_refused(fake_stack: Stack) -> None:
    with fake_stack.client() as client:
        headers = {"content-encoding": "gzip"}
        answer = client.post("/v1/chat/completions", content=b"\x1f\x8b", headers=headers)
    assert_refusal(answer, 415, "unsupported_encoding")


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Basic abc", "Bearer bh_live_x", "Bearer ' OR 1=1--",
     "Bearer bh_live_" + "0" * 38, "Bearer \xff", "Token x y z"],
)  # fmt: skip
def test_bad_keys_get_one_answer(fake_stack: Stack, header: str) -> None:
    """401, whatever was wrong with it; only no key at all is told apart."""
    headers = {b"authorization": header.encode("latin-1")}
    answer = httpx.get(f"{fake_stack.url}/v1/models", headers=headers)
    code = "missing_api_key" if not header else "invalid_api_key"
    error = assert_refusal(answer, 401, code)
    assert "OR 1=1" not in error["message"]


def test_wrong_routes_and_methods(fake_stack: Stack) -> None:
    with fake_stack.client() as client:
        assert_refusal(client.get("/v1/nothing"), 404, "route_not_found")
        assert_refusal(client.get("/nothing"), 404, "route_not_found")
        assert_refusal(client.get("/v1/chat/completions"), 405, "method_not_allowed")
        assert_refusal(client.post("/v1/models"), 405, "method_not_allowed")
        assert_refusal(client.get("/v1/models/none"), 404, "model_not_found")


def test_usage_parameters_are_checked(fake_stack: Stack) -> None:
    bad = {
        "start_time": "yesterday", "end_time": "2026-01-01", "bucket_width": "1m", "limit": "0",
    }  # fmt: skip
    with fake_stack.client() as client:
        for name, value in bad.items():
            answer = client.get("/v1/usage", params={name: value})
            assert assert_refusal(answer, 400, "invalid_value")["param"] == name
        backwards = client.get("/v1/usage", params={"start_time": "5", "end_time": "5"})
        assert_refusal(backwards, 400, "invalid_value")
        assert_refusal(client.get("/v1/usage/export?format=xml"), 400, "invalid_value")


def test_a_refused_request_is_recorded_unbilled(fake_stack: Stack) -> None:
    """What an engine refused has a row, without cost; what we refused before has none."""
    from tests.e2e.ledger import row_of

    answer = post(fake_stack, chat(messages=[{"role": "user", "content": "x" * 9000}]))
    row = row_of(fake_stack, answer.headers["x-request-id"])
    assert (row["outcome"], row["billable"], row["amount"]) == ("refused", False, "0")
