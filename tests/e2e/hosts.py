"""What tests of hosts share: stacks of the fake engine, what the node tells, right answers."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx

from runtime.node.probe import client as socket_client
from runtime.rundir import node_socket
from tests.e2e.ledger import records
from tests.stack import Stack, running

PROMPT = "abcdefgh"


def config(*models: str, relay: str = "", hosts: str = "") -> str:
    """Models of the fake engine, each told as TOML, and short times."""
    return "\n".join(
        [
            f"[relay]\nstart_s = 60\n{relay}\n[hosts]\nhealth_every_s = 0.5\n{hosts}",
            *(f'[[models]]\nengine = "fake"\n{model}' for model in models),
        ]
    )


@contextmanager
def stack_of(folder: Path, text: str) -> Iterator[Stack]:
    with running(folder, text) as stack:
        yield stack
        assert "Traceback" not in stack.log.read_text()


class Hosts:
    """What the node tells."""

    def __init__(self, stack: Stack, http: httpx.AsyncClient) -> None:
        self._http = http
        self.stack = stack

    async def told(self, after: int = 0, wait_s: float = 0) -> Any:
        query = {"after": after, "wait_s": wait_s}
        return (await self._http.get("/hosts", params=query)).json()

    async def model(self, id: str) -> Any:
        return next(m for m in (await self.told())["models"] if m["id"] == id)

    async def until_count(self, count: int) -> None:
        """Returns once there are so many hosts, and processes of hosts."""
        async with asyncio.timeout(60):
            while len((await self.told())["hosts"]) != count or len(self.pids()) != count:
                await asyncio.sleep(0.05)

    def pids(self) -> list[int]:
        return self.stack.children("runtime.host")

    async def restart(self, model: str) -> None:
        assert (await self._http.post(f"/models/{model}/restart")).status_code == 200


@asynccontextmanager
async def hosts_of(stack: Stack) -> AsyncIterator[Hosts]:
    async with socket_client(str(node_socket(stack.state)), 60) as http:
        yield Hosts(stack, http)


@asynccontextmanager
async def caller(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {stack.key}"}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=stack.url, headers=headers, limits=limits, timeout=120
    ) as http:
        yield http


async def ask(http: httpx.AsyncClient, model: str = "echo", tokens: int = 20) -> str:
    """One whole, right answer, streamed or not; its request id."""
    stream = random.random() < 0.5
    body = {"model": model, "prompt": PROMPT, "max_tokens": tokens, "stream": stream}
    answer = await http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    if stream:
        assert answer.text.endswith("data: [DONE]\n\n"), answer.text
        events = [e[6:] for e in answer.text.split("\n\n") if e.startswith("data: {")]
        text = "".join(json.loads(event)["choices"][0]["text"] for event in events)
    else:
        text = answer.json()["choices"][0]["text"]
    assert text == (PROMPT * tokens)[:tokens]
    return answer.headers["x-request-id"]


def check_ledger(stack: Stack, asked: list[str]) -> None:
    """One settled, billed row a request, and no other."""
    rows = records(stack)
    assert sorted(row["request_id"] for row in rows) == sorted(asked)
    assert {(row["state"], row["outcome"], row["billable"]) for row in rows} == {
        ("settled", "length", 1)
    }
