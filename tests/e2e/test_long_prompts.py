"""Prompts that can't fit cost their sender a 400, and nobody else their time."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from tests.stack import Stack

pytestmark = pytest.mark.slow

MODEL = "smollm2-135m-instruct"


def ask(stack: Stack, content: str, **more: Any) -> Any:
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}]} | more
    with stack.client() as client:
        return client.post("/v1/chat/completions", json=body)


@pytest.mark.parametrize("text", ["1" * 4_000_000, "a b c " * 200_000], ids=["digits", "words"])
def test_a_neighbour_streams_on(real_stack: Stack, text: str) -> None:
    """Six mebibyte-sized prompts at once: each a 400, no gap of seconds in another's stream."""
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(ask(real_stack, text))) for _ in range(6)
    ]
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Count to fifty."}],
            "max_tokens": 96, "stream": True}  # fmt: skip
    gaps, last = [], 0.0
    route = "/v1/chat/completions"
    with real_stack.client() as client, client.stream("POST", route, json=body) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                now = time.monotonic()
                gaps.append(now - last if last else 0.0)
                last = now
                if len(gaps) == 4:
                    for thread in threads:
                        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [400] * 6
    error = answers[0].json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert json.dumps(error).count("1") < 100, "the prompt isn't repeated in its refusal"
    assert max(gaps) < 3, f"a gap of {max(gaps):.1f} s"
