"""What the tests of real hosts share: specs, calls, and conditions that are waited for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import structs

from runtime.capability import Signer
from runtime.config.sections import HostSettings
from runtime.host.process import HostSpec
from runtime.node.probe import client

REPO = Path(__file__).parents[2]
ENV = dict(os.environ) | {"PYTHONPATH": str(REPO)}
SIGNER = Signer(bytes(range(32)))
QUICK = HostSettings(
    start_s=30, health_every_s=0.1, health_timeout_s=2, backoff_first_s=0.05, backoff_max_s=0.2
)


def spec(folder: Path, **changes: Any) -> HostSpec:
    """A fake engine's host in `folder`."""
    base = HostSpec(
        id="host-0-1",
        model="echo",
        engine="fake",
        path="",
        socket=str(folder / "h.sock"),
        public_keys=SIGNER.public_keys(),
        default_max_tokens=16,
        options={"faults": True, "step_s": 0.001},
    )
    return structs.replace(base, **changes)


def authorization() -> dict[str, str]:
    return {"authorization": f"Bearer {SIGNER.mint('d', 'echo')}"}


async def complete(socket: str, prompt: str = "abc", max_tokens: int = 4) -> Any:
    """A whole answer, asked of a host directly."""
    body = {"model": "echo", "prompt": prompt, "max_tokens": max_tokens}
    async with client(socket, 30) as http:
        answer = await http.post("/v1/completions", json=body, headers=authorization())
        return answer.json()


async def until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


async def stats_where(socket: str, name: str, value: int) -> None:
    """Returns once a host's engine says so."""
    async with client(socket, 5) as http, asyncio.timeout(30):
        while (await http.get("/stats")).json()[name] != value:
            await asyncio.sleep(0.005)


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def host_children() -> list[int]:
    """The host processes that this one has."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in map(int, children) if b"runtime.host" in _command(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
