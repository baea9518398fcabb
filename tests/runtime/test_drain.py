"""A host that drains loses nothing: who is on the way is answered, if only to go elsewhere."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.relay.transport import ConnectFailed, Transport
from runtime.host.drain import LINGER_S, Traffic
from runtime.node.child import Child
from tests.runtime.hosts import ENV, authorization, spec, stats_where

BODY = json.dumps({"model": "echo", "prompt": "abc", "max_tokens": 4}).encode()


@asynccontextmanager
async def host(folder: Path, step_s: float = 0.0) -> AsyncIterator[Child]:
    child = await Child.spawn(spec(folder, options={"step_s": step_s}), ENV)
    try:
        await child.ready(30)
        yield child
    finally:
        await child.clean_up()


async def ask(transport: Transport, body: bytes = BODY) -> tuple[int, str]:
    """(status, error code)"""
    url = "http://host/v1/completions"
    async with transport.send("POST", url, authorization(), body) as reply:
        answer = json.loads(await reply.read(1 << 20))
        return reply.status, answer.get("error", {}).get("code", "")


async def test_while_one_runs_others_are_refused_on_old_and_new_connections(tmp_path: Path) -> None:
    async with host(tmp_path, step_s=0.02) as child:
        transport, other = Transport(child.spec.socket), Transport(child.spec.socket)
        assert (await ask(transport))[0] == 200
        long = BODY.replace(b'"max_tokens": 4', b'"max_tokens": 60')
        running = asyncio.ensure_future(ask(transport, long))
        await stats_where(child.spec.socket, "running", 1)
        child.drain()
        async with asyncio.timeout(20):
            while await ask(transport) != (503, "draining"):  # the word takes a moment
                pass
        assert await ask(other) == (503, "draining")
        assert (await running)[0] == 200
        for one in (transport, other):
            await one.aclose()
        assert await asyncio.wait_for(child.exited(), 10) == 0


async def test_it_ends_as_soon_as_nobody_holds_a_connection(tmp_path: Path) -> None:
    async with host(tmp_path) as child:
        transport = Transport(child.spec.socket)
        await ask(transport)
        child.drain()
        await asyncio.sleep(0.3)
        assert await ask(transport) == (503, "draining"), "it stays while one is held"
        await transport.aclose()
        assert await asyncio.wait_for(child.exited(), 10) == 0
        with pytest.raises(ConnectFailed):  # nothing was sent, so it may be sent elsewhere
            await ask(transport)
        await transport.aclose()


async def test_a_connection_that_is_never_used_again_holds_it_for_a_while_only(
    tmp_path: Path,
) -> None:
    async with host(tmp_path) as child:
        transport = Transport(child.spec.socket)
        await ask(transport)
        began = time.monotonic()
        child.drain()
        assert await asyncio.wait_for(child.exited(), 20) == 0
        assert time.monotonic() - began > LINGER_S
        await transport.aclose()


async def test_under_load_every_request_is_answered_or_finds_nobody(tmp_path: Path) -> None:
    """Sixteen clients that never heard of the drain, each request on a connection of its own."""
    async with host(tmp_path, step_s=0.001) as child:
        found: list[tuple[int, str]] = []

        async def client() -> None:
            while True:
                transport = Transport(child.spec.socket)
                try:
                    found.append(await ask(transport))
                except ConnectFailed:
                    return
                finally:
                    await transport.aclose()

        clients = [asyncio.ensure_future(client()) for _ in range(16)]
        while len(found) < 100:
            await asyncio.sleep(0.01)
        child.drain()
        assert await asyncio.wait_for(child.exited(), 60) == 0
        await asyncio.gather(*clients)  # raises Broken if a request was lost
        assert set(found) == {(200, ""), (503, "draining")}


def test_traffic_tells_how_much_runs_and_since_when_nothing_does() -> None:
    traffic = Traffic()
    with traffic, traffic:
        assert (traffic.running, traffic.idle_s) == (2, 0.0)
    assert traffic.running == 0
    time.sleep(0.002)
    assert traffic.idle_s >= 0.002
