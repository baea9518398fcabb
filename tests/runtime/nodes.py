"""What the tests of real nodes share: a node that runs, and what it tells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from msgspec import structs

from runtime import keyring
from runtime.capability import CAPABILITY_LABEL, Signer
from runtime.config.models import ModelSettings
from runtime.config.sections import FileSettings, HostSettings, ServerSettings
from runtime.node.node import Node
from runtime.node.probe import client
from runtime.rundir import node_socket
from runtime.settings import Settings
from tests.runtime.hosts import QUICK, host_children
from tests.runtime.servers import node_on

MIB = 1 << 20


def model(id: str = "echo", **changes: Any) -> ModelSettings:
    given: dict[str, Any] = {"engine": "fake", "memory_bytes": 64 * MIB} | changes
    given["options"] = {"step_s": 0.01} | given.get("options", {})
    return ModelSettings(id=id, **given)


ATTACHED = ModelSettings(id="attached", engine="openai", url="http://127.0.0.1:1/v1")
WARM = model(min_hosts=1)
COLD = model(idle_timeout_s=0.2)


def settings(folder: Path, *models: ModelSettings, **hosts: Any) -> Settings:
    given: HostSettings = structs.replace(QUICK, **hosts)
    file = FileSettings(models=models, hosts=given, server=ServerSettings(drain_s=10))
    return Settings(file=file, config_path="", state_dir=folder / "state")


class Running:
    """A node that runs, and what a gateway called `g` says to it."""

    def __init__(self, node: Node, http: httpx.AsyncClient, stop: asyncio.Event) -> None:
        self.node, self.http, self.stop = node, http, stop

    async def told(self, after: int = 0, wait_s: float = 0, **query: Any) -> Any:
        answer = await self.http.get("/hosts", params={"after": after, "wait_s": wait_s} | query)
        assert answer.status_code == 200
        return answer.json()

    async def demand(self, **models: int) -> None:
        """So many requests wait for each of these models, and none for others."""
        body = {"models": {name: {"waiting": count} for name, count in models.items()}}
        answer = await self.http.put("/demand/g", json=body)
        assert answer.status_code == 204

    async def until(self, condition: Callable[[Any], bool], **demand: int) -> Any:
        """What is told once it fulfils a condition; the demand is renewed meanwhile."""
        async with asyncio.timeout(40):
            while not condition(found := await self.told()):
                if demand:
                    await self.demand(**demand)
                await asyncio.sleep(0.02)
        return found

    async def ready(self, count: int = 1, model: str = "echo", **demand: int) -> Any:
        """Its ready hosts, once there are so many."""
        found = await self.until(lambda told: len(ready(told, model)) == count, **demand)
        return ready(found, model)


def ready(told: Any, model: str = "echo") -> list[Any]:
    return [h for h in told["hosts"] if (h["model"], h["state"]) == (model, "ready")]


def other_than(told: Any, host: Any) -> bool:
    """Whether there is a ready host of its model, and it is another one."""
    return [h["id"] for h in ready(told, host["model"])] not in ([], [host["id"]])


def state_of(told: Any, model: str = "echo") -> str:
    return next((m["state"] for m in told["models"] if m["id"] == model), "none")


@asynccontextmanager
async def running(given: Settings) -> AsyncIterator[Running]:
    async with (
        node_on(given) as (node, stop),
        client(str(node_socket(given.state_dir)), 30) as http,
    ):
        yield Running(node, http, stop)
    assert host_children() == []


def headers(node: Running, model: str = "echo") -> dict[str, str]:
    state_dir = node.node._settings.state_dir
    signer = Signer(keyring.load(state_dir).derive(CAPABILITY_LABEL))
    return {"authorization": f"Bearer {signer.mint('d', model)}"}


async def complete(node: Running, host: Any, max_tokens: int = 2, prompt: str = "ab") -> Any:
    body = {"model": host["model"], "prompt": prompt, "max_tokens": max_tokens}
    async with client(host["socket"], 60) as http:
        given = headers(node, host["model"])
        answer = await http.post("/v1/completions", json=body, headers=given)
        return answer.json()


async def in_flight(host: Any) -> None:
    """Returns once something runs on a host."""
    async with client(host["socket"], 10) as http, asyncio.timeout(30):
        while (await http.get("/health")).json()["in_flight"] == 0:
            await asyncio.sleep(0.005)
