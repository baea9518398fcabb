"""From the guard's journal to the bill: a real launcher tells, a real gateway hears and ends.

The fake in the launcher writes state and journal with the guard's own modules.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from engines.trtllm.salts import digest, salt_id
from runtime.trt.bind import Bind
from runtime.trt.telling import Listeners, Telling, open_door
from tests.e2e.ledger import row_of
from tests.runtime.trt.serving import QUICK, Launched, launched
from tests.stack import Stack, free_port, running
from tests.trtllm.control import ask
from tests.waiting import until

SECRET = "guard-secret"
CONFIG = """
[relay]
probe_every_s = 0
[[models]]
id = "guarded"
engine = "tensorrt-llm"
url = "http://127.0.0.1:{port}/v1"
upstream_model = "llama"
price = {{ input = "1", cached_input = "0.1", output = "10" }}
[models.trt]
guard_url = "http://127.0.0.1:{guard_port}"
guard_secret = "GUARD"
"""
# Nothing is asked or ended but by the tests.
PATIENT = replace(QUICK, every_s=600, within_s=60, starved_s=600)


class World:
    """A gateway before a launched server, and the keys of two tenants."""

    def __init__(self, server: Launched, stack: Stack) -> None:
        self.server = server
        self.stack = stack
        self._clients: dict[str, openai.AsyncOpenAI] = {}
        self._violations: list[dict[str, Any]] = []

    async def cli(self, *args: str) -> str:
        return (await asyncio.to_thread(self.stack.cli, *args)).strip()

    def client(self, key: str = "") -> openai.AsyncOpenAI:
        key = key or self.stack.key
        if key not in self._clients:
            self._clients[key] = openai.AsyncOpenAI(
                base_url=f"{self.stack.url}/v1", api_key=key, max_retries=0
            )
        return self._clients[key]

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    def ask(self, key: str = "", **more: Any) -> Any:
        messages: Any = [{"role": "user", "content": "hi"}]
        asked = {"model": "guarded", "max_tokens": 4, "messages": messages, **more}
        return self.client(key).chat.completions.with_raw_response.create(**asked)

    def salts(self) -> list[str]:
        """Of the gateway's requests, in order; the launcher asks for its token with one, too."""
        seen = ask(str(self.server.folder / "c.sock"), seen=True)["seen"]
        return [one["body"]["cache_salt"] for one in seen if _is_of_gateway(one)]

    async def violate(self, **whose: Any) -> None:
        """The guard's journal gets one line more."""
        told = {"step": 1, "request": 1, "client": None, "kind": "foreign", "block": 7}
        self._violations.append({**told, "salt": None, "salt_id": None, **whose})
        self.server.behave(violations=self._violations)

    async def row(self, request_id: str, key: str = "") -> dict[str, Any]:
        of = replace(self.stack, key=key) if key else self.stack
        return await asyncio.to_thread(row_of, of, request_id)

    async def state(self) -> dict[str, Any]:
        """Of the server, as the admin API tells it."""
        key = (self.stack.state / "admin-key").read_text().strip()
        url = f"http://127.0.0.1:{self.stack.admin_port}/admin/v1/models"
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}) as client:
            (model,) = (await client.get(url)).json()["data"]
        found: dict[str, Any] = model["servers"][0]
        return found


def _is_of_gateway(seen: dict[str, Any]) -> bool:
    return any(name == "x-request-id" for name, _ in seen["headers"])


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[World]:
    async with launched(folder, patience=PATIENT) as server:
        guard_port = free_port()
        telling = Telling(server.launcher.view, server.launcher.feed)
        door = open_door(Bind("127.0.0.1", guard_port))
        listeners = Listeners([(door, telling.app(SECRET))])
        serving = asyncio.ensure_future(listeners.serve())
        config = CONFIG.format(port=server.bind.port, guard_port=guard_port)
        (folder / ".dev.vars").write_text(f"GUARD={SECRET}\n")
        context = running(folder, config)
        try:
            await server.ready()
            stack = await asyncio.to_thread(context.__enter__)
            world = World(server, stack)
            try:
                yield world
            finally:
                await world.close()
                await asyncio.to_thread(context.__exit__, None, None, None)
        finally:
            listeners.stop()
            await serving


async def answered(world: World, **more: Any) -> str:
    """The id of a request that is answered, once one is: the guard is heard."""
    async with asyncio.timeout(60):
        while True:
            with suppress(openai.InternalServerError):  # 503: not yet
                return str((await world.ask(**more)).headers["x-request-id"])
            await asyncio.sleep(0.1)


async def read(chunks: Any) -> None:
    async for _ in chunks:
        pass


@pytest.fixture(autouse=True)
def _short_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))


async def test_whose_block_it_was_is_stopped_unbilled_and_others_go_on(tmp_path: Path) -> None:
    async with guarded(tmp_path) as world:
        await answered(world)
        await world.cli("tenants", "create", "other")
        other = await world.cli("keys", "create", "other")
        world.server.fail(hangs={"after": 2, "times": 1})
        stream = await world.ask(stream=True)
        chunks = stream.parse()
        await anext(chunks)
        theirs = await answered(world, key=other)
        salt, another = world.salts()[-2:]
        assert salt != another, "each tenant has its own"
        await world.violate(salt=digest(salt))
        with pytest.raises(openai.APIError, match="could not be verified") as error:
            await read(chunks)
        assert error.value.code == "kv_integrity_abort"
        row = await world.row(stream.headers["x-request-id"])
        assert (row["outcome"], row["billable"]) == ("integrity_abort", False)
        assert row["amount"] in (None, "0")
        assert (await world.row(theirs, key=other))["billable"]
        log = world.stack.log.read_text()
        assert "guard_violation" in log
        assert salt not in log
        world.server.behave()  # its launcher starts it anew
        await world.server.ready(starts=2)
        assert (await world.row(await answered(world)))["billable"]
        server = await world.state()
        assert (server["is_down"], server["guard"]) == (False, "")


async def test_before_its_first_token_it_is_asked_again_unless_its_server_leaves(
    tmp_path: Path,
) -> None:
    """The violation names TensorRT-LLM's own number of the salt, as 1.2.1 may.

    It makes the launcher end the only server there is, which may be told before it is asked again.
    """
    async with guarded(tmp_path) as world:
        await answered(world)
        world.server.fail(hangs={"after": 0, "times": 1})
        asked = asyncio.ensure_future(world.ask())
        await until(lambda: len(world.salts()) == 2)
        warm = world.salts()[-1]
        await world.violate(salt_id=f"{salt_id(warm):016x}")
        try:
            answer, code = (await asked).http_response, None
        except openai.InternalServerError as fault:
            answer, code = fault.response, fault.code
        row = await world.row(answer.headers["x-request-id"])
        is_cold = world.salts()[-1] != warm
        assert code == (None if is_cold else "kv_integrity_abort")
        assert row["billable"] == is_cold
        assert row["attempts"] == 1 + is_cold
        assert not row["cached_input_tokens"]


async def test_where_the_guard_fails_nothing_is_served_until_it_is_well(tmp_path: Path) -> None:
    async with guarded(tmp_path) as world:
        await answered(world)
        world.server.fail(hangs={"after": 2, "times": 1})
        stream = await world.ask(stream=True)
        world.server.behave(guard="poisoned")
        with pytest.raises(openai.APIError, match=r"could not be verified|broke off"):
            await read(stream.parse())  # the launcher ends the server, too
        assert not (await world.row(stream.headers["x-request-id"]))["billable"]
        with pytest.raises(openai.APIStatusError) as refused:
            await world.ask()
        assert refused.value.code == "model_unavailable"
        server = await world.state()
        assert server["is_down"]
        assert server["guard"]
        world.server.behave()
        await world.server.ready(starts=2)
        await answered(world)
