"""What the operator's tests ask of a real Bulkhead, and how they wait for what it does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx

from tests.stack import Stack

PATIENCE_S = 60.0


def eventually(holds: Callable[[], Any], what: str) -> Any:
    """The first true value of `holds`."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


def complete(stack: Stack, **fields: Any) -> httpx.Response:
    with stack.client() as client:
        body = {"model": "echo", "prompt": "canary-4711", "max_tokens": 3} | fields
        return client.post("/v1/completions", json=body)
