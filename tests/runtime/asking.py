"""What tests ask of a host, and how they read its answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from tests.runtime.servers import RunningHost

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PROMPT = {"model": "echo", "prompt": "abcd", "max_tokens": 6}
MESSAGES = {"model": "echo", "messages": [{"role": "user", "content": "abcd"}], "max_tokens": 6}


async def post(host: RunningHost, path: str, body: object, **headers: str) -> Any:
    """(status, parsed body)."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await host.client.post(path, content=content, headers=host.authorization() | headers)
    return answer.status_code, answer.json()


async def stream(host: RunningHost, path: str, body: dict[str, Any]) -> list[bytes]:
    """The events of a stream, each without its blank line."""
    headers = host.authorization() | {"x-request-id": "req_7"}
    answer = await host.client.post(path, json=body | {"stream": True}, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.content.endswith(b"\n\n")
    return answer.content.split(b"\n\n")[:-1]


def chunk(event: bytes) -> Any:
    return json.loads(event.rpartition(b"data: ")[2])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)
