"""The private routes of TensorRT-LLM's server: no path through the gateway reaches one of them."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from tests.e2e.trtllm import Front
from tests.trtllm.app import PRIVATE

OPEN = {("POST", "/v1/chat/completions"), ("POST", "/v1/completions")}
PATHS = [path.format(response_id="resp_1") for path in PRIVATE] + ["/health", "/v1/models"]
BEFORE = (
    "", "/", "/v1", "/v1/", "/v1/chat/completions/..", "/v1/chat/completions", "/v1/models/..",
    "/v1/completions/../..", "/v1/models/m0/../../..", "/v1/.", "/.", "//fake", "/v1;x", "\\",
    "http://127.0.0.1", "http://127.0.0.1/v1/chat/completions/../..", "/v1/chat/completions?",
    "/v1/chat/completions?next=", "/v1/chat/completions%3f", "/v1/chat/completions%00",
    "/v1/chat/completions#", "/v1/models/m0?path=", "/V1", "/%76%31", "/v1/usage/..",
)  # fmt: skip
AFTER = ("", "/", "?", "?x=1", "#x", ";a=b", "%20", "%00", "/.", "/../chat/completions", ".json")
CHANGES = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from(["one", "twice", "upper", "dots", "slash"])),
    max_size=4,
)


def changed(path: str, changes: list[tuple[int, str]]) -> str:
    """The path with some of its characters written in another way."""
    chars = list(path)
    for at, how in changes:
        at %= len(chars)
        char = chars[at]
        if len(char) != 1:
            continue
        chars[at] = {
            "one": f"%{ord(char):02x}",
            "twice": f"%25{ord(char):02x}",
            "upper": char.upper(),
            "dots": f"{char}%2e%2e%2f" if char == "/" else char,
            "slash": "%2f" if char == "/" else char,
        }[how]
    return "".join(chars)


def status_of(front: Front, method: str, target: str, body: dict[str, Any]) -> int:
    """What the gateway answers to exactly this target; 0 if it closes without a word."""
    data = json.dumps(body).encode()
    headers = {
        "host": "127.0.0.1",
        "authorization": f"Bearer {front.stack.key}",
        "content-type": "application/json",
        "content-length": len(data),
        "connection": "close",
    }
    lines = [f"{method} {target} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
    with closing(socket.create_connection(("127.0.0.1", front.stack.port), 30)) as sock:
        sock.sendall("\r\n".join(lines).encode("latin-1") + data)
        answer = b""
        while b"\r\n" not in answer and (piece := sock.recv(65536)):
            answer += piece
    return int(answer.split(b" ", 2)[1]) if answer else 0


@settings(deadline=None)
@given(
    method=st.sampled_from(["GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "PATCH"]),
    before=st.sampled_from(BEFORE),
    path=st.sampled_from(PATHS),
    changes=CHANGES,
    after=st.sampled_from(AFTER),
    body=st.sampled_from([{}, {"model": "m0"}, {"action": "truncate"}]),
)
@example("POST", "", "/kv_cache_events", [], "", {})
@example("GET", "http://127.0.0.1", "/metrics", [(0, "slash")], "", {})
@example("POST", "/v1/chat/completions/..", "/kv_cache_hints", [(0, "dots")], "", {})
def test_no_path_reaches_a_private_route(
    trt_front: Front, method: str, before: str, path: str, changes: Any, after: str, body: Any
) -> None:
    trt_front.fake.seen(forget=True)
    target = before + changed(path, changes) + after
    status_of(trt_front, method, target, body)
    assert {(one["method"], one["target"]) for one in trt_front.fake.seen()} <= OPEN


@pytest.mark.parametrize("path", PATHS)
def test_nor_does_a_model_s_name(front: Front, path: str) -> None:
    """No part of what is sent becomes a part of a URL."""
    front.fake.seen(forget=True)
    for name in (path, f"m0/../..{path}", f"../..{path}", f"m0%2f..{path}", f"m0?{path}#"):
        said = front.ask("x", chat=True, stream=False, model=name)
        assert said.status == 404
    assert front.fake.seen() == []


def test_the_fake_would_have_noticed(front: Front) -> None:
    front.fake.seen(forget=True)
    front.ask("x", chat=True, stream=False)
    with closing(socket.create_connection(("127.0.0.1", front.fake.port), 30)) as sock:
        sock.sendall(b"POST /kv_cache%5fevents HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        assert sock.recv(12) == b"HTTP/1.1 200"
    assert [one["target"] for one in front.fake.seen()] == [
        "/v1/chat/completions", "/kv_cache%5fevents",
    ]  # fmt: skip
