"""The fake's other door: faults switched, and what it has seen, a line of JSON each way."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

import msgspec

from tests.trtllm.app import FakeServe
from tests.trtllm.faults import Fault


@asynccontextmanager
async def controlled(fake: FakeServe, path: str) -> AsyncIterator[None]:
    """Listens on the unix socket at `path`, if it has one."""
    if not path:
        yield
        return

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(await reader.readline())
        writer.write(json.dumps(_done(fake, asked)).encode() + b"\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(answer, path)
    try:
        yield
    finally:
        server.close()


def _done(fake: FakeServe, asked: dict[str, Any]) -> dict[str, Any]:
    if "faults" in asked:
        fake.faults.set(msgspec.convert(asked["faults"], dict[str, Fault]))
    seen = [asdict(one) for one in fake.seen] if asked.get("seen") else []
    if asked.get("forget"):
        fake.seen.clear()
    executor = fake.executor
    return {
        "seen": seen,
        "in_hand": executor.in_hand,
        "aborted": executor.num_aborted,
        "steps": executor.num_steps,
    }


def ask(path: str, **asked: Any) -> dict[str, Any]:
    """What the fake behind the socket answers. Raises OSError if there is none."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(30)
        sock.connect(path)
        sock.sendall(json.dumps(asked).encode() + b"\n")
        found: dict[str, Any] = json.loads(sock.makefile().readline())
        return found
