"""Events as a stream, over a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.admin import tail
from gateway.clock import SYSTEM_CLOCK
from gateway.events import EventSender
from runtime.node.probe import client
from tests.gateway.admin.console import Console, console
from tests.runtime.servers import serving


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[Console, httpx.AsyncClient, EventSender]]:
    async with console(folder, with_node=False) as desk:
        sender = EventSender(folder / "events.sock", SYSTEM_CLOCK)
        async with serving(desk.app, folder / "a.sock"), client(str(folder / "a.sock"), 30) as http:
            http.headers["authorization"] = f"Bearer {desk.key}"
            http.headers["host"] = "localhost"
            yield desk, http, sender
        sender.close()


async def lines(answer: httpx.Response) -> AsyncGenerator[str]:
    async for line in answer.aiter_lines():
        if line:
            yield line


async def event(stream: AsyncIterator[str]) -> dict[str, Any]:
    """The next event."""
    async for line in stream:
        if line.startswith("data: "):
            found: dict[str, Any] = json.loads(line.removeprefix("data: "))
            return found
    raise AssertionError("the stream ended")


async def test_what_passes_the_filter_arrives_in_order(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as (desk, http, sender),
        http.stream("GET", "/admin/v1/tail?status=error&status=canceled") as answer,
        aclosing(lines(answer)) as stream,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-request-id"]
        assert await anext(stream) == ": listening"
        assert desk.hub.num_listeners == 1
        sender.send({"status": 200, "n": 1})
        sender.send({"status": 404, "n": 2, "code": "model_not_found"})
        sender.send({"status": 499, "n": 3})
        assert await anext(stream) == "event: request"
        assert (await event(stream))["n"] == 2
        assert (await event(stream))["n"] == 3


async def test_a_client_that_leaves_is_forgotten(tmp_path: Path) -> None:
    async with served(tmp_path) as (desk, http, _):
        async with http.stream("GET", "/admin/v1/tail") as answer:
            assert await anext(aiter(answer.aiter_lines())) == ": listening"
        async with asyncio.timeout(10):
            while desk.hub.num_listeners:
                await asyncio.sleep(0.005)
        assert not (tmp_path / "events.sock").exists()


async def test_a_silent_stream_is_kept_alive_whatever_is_filtered_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "KEEP_ALIVE_S", 0.02)
    async with (
        served(tmp_path) as (_, http, sender),
        http.stream("GET", "/admin/v1/tail?model=none") as answer,
        aclosing(lines(answer)) as stream,
    ):
        assert await anext(stream) == ": listening"
        for _n in range(3):
            sender.send({"status": 200, "model": "other"})
            assert await anext(stream) == ": keep-alive"


async def test_when_the_hub_closes_the_stream_ends(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as (desk, http, _),
        http.stream("GET", "/admin/v1/tail") as answer,
        aclosing(lines(answer)) as stream,
    ):
        assert await anext(stream) == ": listening"
        desk.hub.close()
        assert [line async for line in stream] == []


async def test_too_many_is_a_problem_and_not_a_broken_stream(tmp_path: Path) -> None:
    async with served(tmp_path) as (desk, http, _):
        with desk.hub.listen():
            desk.hub._max_listeners = 1
            answer = await http.get("/admin/v1/tail")
        assert answer.status_code == 429
        assert answer.json()["type"] == "urn:bulkhead:problem:too-many-tails"
