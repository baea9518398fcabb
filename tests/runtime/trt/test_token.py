"""What counts as a token, of what a server answers."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import json

from runtime.trt.token import _judged
from runtime.trt.watch import Heard


def answer(content: str | None, tokens: int | None, **more: Any) -> bytes:
    choice = {"message": {"content": content}, **more}
    usage = None if tokens is None else {"completion_tokens": tokens}
    return json.encode({"choices": [choice], "usage": usage})


@pytest.mark.parametrize(
    "body", [answer("a", 1), answer("", 1), answer(None, 1), answer("a", None)], ids=str
)
def test_a_token(body: bytes) -> None:
    assert _judged(body).heard is Heard.TOKEN


@pytest.mark.parametrize(
    "body",
    [
        answer("", 0),
        answer("a", 0),
        answer("", None),
        answer("", 1, stop_reason="kv_integrity_abort"),
        b"",
        b"[]",
        b'{"choices":[]}',
        b'{"choices":[{}]}',
        b'{"choices":[3]}',
    ],
    ids=str,
)
def test_no_token(body: bytes) -> None:
    assert _judged(body).heard is Heard.FAULT
