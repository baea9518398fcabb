"""Hosts that come and go under load: no request is lost, and the memory comes back."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import httpx
import pytest

from runtime.node.machine import resident_bytes
from tests.e2e.hosts import Hosts, ask, caller, check_ledger, config, hosts_of, stack_of
from tests.stack import SOAK, Stack

pytestmark = pytest.mark.slow

MIB = 1 << 20
STARTS = 100 if SOAK else 8
HELD = 64 * MIB  # by each fake engine
GROWTH = 24 * MIB  # of gateway and node together, that no host's memory explains


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
