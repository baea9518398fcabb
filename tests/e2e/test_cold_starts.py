"""Hosts that come and go under load: no request is lost, and the memory comes back."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from runtime.node.machine import resident_bytes
from runtime.node.probe import client as socket_client
from runtime.state import node_socket
from tests.e2e.ledger import records
from tests.stack import SOAK, Stack, running

pytestmark = pytest.mark.slow

MIB = 1 << 20
STARTS = 100 if SOAK else 8
HELD = 64 * MIB  # by each fake engine
GROWTH = 24 * MIB  # of gateway and node together, that no host's memory explains
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


async def test_no_request_is_lost_while_hosts_start_and_stop(tmp_path: Path) -> None:
    """Requests come at random times, many of them while a host is told to go, or goes."""
    model = (
        f'id = "echo"\nidle_timeout_s = 0.05\noptions = {{ step_s = 0.002, held_bytes = {HELD} }}'
    )
    with stack_of(tmp_path, config(model)) as stack:
        async with hosts_of(stack) as hosts, caller(stack) as http:
            asked = [await ask(http) for _ in range(3)]  # what is loaded once, is loaded now
            warm = memory(stack, hosts)
            await hosts.until_count(0)
            before = memory(stack, hosts)
            assert warm - before > HELD, "its memory is given back"
            asked += await storm(hosts, http, STARTS)
            await hosts.until_count(0)
            after = memory(stack, hosts)
            assert hosts.pids() == []
            check_ledger(stack, asked)
            assert after - before < GROWTH, f"{before / MIB:.0f} MiB became {after / MIB:.0f}"


async def storm(hosts: Hosts, http: httpx.AsyncClient, starts: int) -> list[str]:
    """Ask at random until so many hosts have started and gone; the ids of all requests.

    Half a second of requests is the least that keeps a host; each spray here is shorter, so hosts
    are told to go in the middle of some.
    """
    asked: list[asyncio.Task[str]] = []
    seen: set[str] = set()
    version = 0

    async def spray() -> None:
        for _ in range(random.randint(1, 40)):
            asked.append(asyncio.ensure_future(ask(http)))
            await asyncio.sleep(0.008)

    async with asyncio.timeout(60 + 10 * starts):
        while len(seen) < starts:
            await spray()
            told = await hosts.told(version, random.uniform(0.1, 1.5))
            version = told["version"]
            seen |= {host["id"] for host in told["hosts"] if host["state"] == "draining"}
    return await asyncio.gather(*asked)


def memory(stack: Stack, hosts: Hosts) -> int:
    """Bytes of the parent, the worker and all hosts."""
    assert stack.process is not None
    return sum(map(resident_bytes, [stack.process.pid, stack.worker_pid(), *hosts.pids()]))


@pytest.mark.parametrize("count", [2, 3])
async def test_models_share_memory_for_one_and_all_are_answered(tmp_path: Path, count: int) -> None:
    models = [
        f'id = "m{i}"\nmemory_bytes = {64 * MIB}\noptions = {{ step_s = 0.005 }}'
        for i in range(count)
    ]
    text = config(*models, hosts=f"memory_bytes = {100 * MIB}\nyield_s = 1")
    with stack_of(tmp_path, text) as stack:
        async with hosts_of(stack) as hosts, caller(stack) as http:

            async def client(model: str) -> list[str]:
                asked = []
                for _ in range(20 if SOAK else 4):
                    asked.append(await ask(http, model, random.randint(5, 60)))
                    await asyncio.sleep(random.uniform(0, 0.5))
                return asked

            async def never_two() -> None:
                while True:
                    assert len(hosts.pids()) <= 1
                    await asyncio.sleep(0.05)

            watch = asyncio.ensure_future(never_two())
            found = await asyncio.gather(*(client(f"m{i % count}") for i in range(2 * count)))
            assert not watch.done(), "memory for one held two"
            watch.cancel()
            check_ledger(stack, [id for asked in found for id in asked])


async def test_hosts_grow_with_the_load_and_shrink_when_it_is_over(tmp_path: Path) -> None:
    model = """id = "echo"
min_hosts = 1
max_hosts = 3
max_in_flight = 4
idle_timeout_s = 1
options = { step_s = 0.02 }"""
    with stack_of(tmp_path, config(model)) as stack:
        async with hosts_of(stack) as hosts, caller(stack) as http:
            asked = [asyncio.ensure_future(ask(http, tokens=120)) for _ in range(24)]
            most = 0
            while not all(task.done() for task in asked):
                most = max(most, len((await hosts.told())["hosts"]))
                await asyncio.sleep(0.02)
            ids = await asyncio.gather(*asked)
            assert most == 3
            trickle = [await ask(http) for _ in range(5)]
            await hosts.until_count(1)
            assert (await hosts.model("echo"))["state"] == "ready"
            check_ledger(stack, ids + trickle)


SLOW = 'id = "echo"\nmax_waiting = 2\noptions = { start_s = 2 }'


async def test_a_stream_that_waits_for_its_host_is_kept_alive(tmp_path: Path) -> None:
    with stack_of(tmp_path, config(SLOW, relay="keep_alive_s = 0.3")) as stack:
        async with caller(stack) as http:
            body = {"model": "echo", "prompt": PROMPT, "max_tokens": 3, "stream": True}
            answer = await http.post("/v1/completions", json=body)
            before, _, after = answer.text.partition("data: ")
            assert before.count(": keep-alive\n\n") >= 2
            assert after.endswith("data: [DONE]\n\n")


async def test_a_client_that_leaves_while_it_waits_leaves_the_line(tmp_path: Path) -> None:
    with stack_of(tmp_path, config(SLOW, relay="keep_alive_s = 0.3")) as stack:
        async with caller(stack) as http, hosts_of(stack) as hosts:
            body = {"model": "echo", "prompt": PROMPT, "max_tokens": 3, "stream": True}
            for _ in range(4):  # twice as many as may wait at a time
                async with http.stream("POST", "/v1/completions", json=body) as answer:
                    assert await anext(answer.aiter_raw()) == b": keep-alive\n\n"
                    assert (await hosts.model("echo"))["state"] == "starting"
                await until_settled(stack)
                await hosts.restart("echo")
            assert {row["outcome"] for row in records(stack)} == {"client_cancelled"}


async def until_settled(stack: Stack) -> None:
    async with asyncio.timeout(20):
        while any(row["state"] != "settled" for row in records(stack)):
            await asyncio.sleep(0.02)


async def test_no_more_wait_than_may(tmp_path: Path) -> None:
    with stack_of(tmp_path, config(SLOW)) as stack:
        async with caller(stack) as http:
            body = {"model": "echo", "prompt": PROMPT, "max_tokens": 3}
            answers = await asyncio.gather(
                *(http.post("/v1/completions", json=body) for _ in range(6))
            )
            refused = [answer for answer in answers if answer.status_code != 200]
            assert len(refused) == 4
            for answer in refused:
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "queue_full"
                assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize("fault", ["told to fail", "MemoryError"])
async def test_a_model_that_can_t_start_is_refused_and_comes_back(
    tmp_path: Path, fault: str
) -> None:
    """The reason is for the operator: in the log, not in the answer."""
    flag = tmp_path / "fail"
    flag.touch()
    option = f'fail_file = "{flag}"' if fault == "told to fail" else "held_bytes = 1000000000000000"
    model = f'id = "echo"\nmemory_bytes = 1\noptions = {{ {option} }}'
    text = config(model, hosts="backoff_first_s = 0.05\nmax_failures = 3")
    with stack_of(tmp_path, text) as stack:
        async with caller(stack) as http, hosts_of(stack) as hosts:
            body = {"model": "echo", "prompt": PROMPT, "max_tokens": 3}
            for _ in range(2):  # the one that waits, and the next at once
                answer = await http.post("/v1/completions", json=body)
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "model_failed"
                assert int(answer.headers["retry-after"]) > 0
                assert fault not in answer.text
                assert str(tmp_path) not in answer.text
            assert fault in (await hosts.model("echo"))["reason"]
            assert fault in stack.log.read_text()
            flag.unlink()
            if fault == "told to fail":
                await hosts.restart("echo")
                await ask(http)


async def test_a_request_survives_a_host_that_dies_while_it_starts(tmp_path: Path) -> None:
    text = config('id = "echo"\noptions = { start_s = 1 }', hosts="backoff_first_s = 0.05")
    with stack_of(tmp_path, text) as stack:
        async with caller(stack) as http, hosts_of(stack) as hosts:
            asked = asyncio.ensure_future(ask(http))
            for number in (1, 2):
                await hosts.until_count(1)
                stack.kill(hosts.pids()[0])
                async with asyncio.timeout(30):
                    while (await hosts.model("echo"))["failures"] < number:
                        await asyncio.sleep(0.02)
            assert await asked
            assert (await hosts.model("echo"))["reason"]


async def test_a_host_that_hangs_is_replaced_and_the_next_request_works(tmp_path: Path) -> None:
    model = 'id = "echo"\noptions = { step_s = 0.02 }'
    text = config(model, hosts="health_timeout_s = 0.5", relay="idle_s = 30")
    with stack_of(tmp_path, text) as stack:
        async with caller(stack) as http, hosts_of(stack) as hosts:
            body = {"model": "echo", "prompt": PROMPT, "max_tokens": 4000, "stream": True}
            async with http.stream("POST", "/v1/completions", json=body) as answer:
                chunks = answer.aiter_raw()
                await anext(chunks)
                os.kill(hosts.pids()[0], signal.SIGSTOP)
                began = time.monotonic()
                data = b"".join([chunk async for chunk in chunks])
            assert time.monotonic() - began < 25, "it isn't the request's own patience that ends it"
            assert b'"code":"upstream_error"' in data
            assert b"[DONE]" not in data
            await ask(http)
