"""What a launcher tells over HTTP, to quick followers and slow ones, on real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from engines.trtllm.journal import Journal
from engines.trtllm.state import StateFile, read_state
from runtime.trt import telling
from runtime.trt.bind import Bind
from runtime.trt.feed import Feed
from runtime.trt.telling import Listeners, Telling, open_door
from runtime.trt.view import TrtState, View
from tests.stack import free_port
from tests.waiting import until

VIEW = View(model="m", url="http://127.0.0.1:1", state=TrtState.READY, since=1.0)
BEARER = {"authorization": "Bearer sesame"}


class Told:
    """A guard's folder, and a launcher that tells of it."""

    def __init__(self, folder: Path) -> None:
        self.state, self.journal = StateFile.create(folder), Journal(folder)
        self.state.tell(1, 4, 0)
        self._count = 0
        found = read_state(folder)
        assert found
        self.feed: Feed | None = Feed(folder, found)
        self.telling = Telling(lambda: VIEW, lambda: self.feed)
        self.port = free_port()
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=60)

    def violate(self, times: int = 1, **more: Any) -> None:
        for _ in range(times):
            self._count += 1
            self.journal.append({"kind": "foreign", "block": self._count} | more)
        self.state.tell(2, 8, self._count)
        assert self.feed
        self.feed.look()

    @asynccontextmanager
    async def follow(self, **query: Any) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        async with self.client.stream("GET", "/events", headers=BEARER, params=query) as reply:
            assert reply.status_code == 200, await reply.aread()
            yield (json.loads(line) async for line in reply.aiter_lines())


@asynccontextmanager
async def told(folder: Path) -> AsyncIterator[Told]:
    one = Told(folder)
    listeners = Listeners([(open_door(Bind("127.0.0.1", one.port)), one.telling.app("sesame"))])
    serving = asyncio.ensure_future(listeners.serve())
    try:
        yield one
    finally:
        await one.client.aclose()
        listeners.stop()
        await serving


async def violations(lines: AsyncIterator[dict[str, Any]], count: int) -> list[int]:
    """The blocks of the next so many."""
    found: list[int] = []
    async for line in lines:
        if "violation" in line:
            found.append(line["violation"]["block"])
            if len(found) == count:
                break
    return found


async def test_who_shows_no_secret_or_another_learns_nothing(tmp_path: Path) -> None:
    async with told(tmp_path) as one:
        for shown in ("", "sesame", "Bearer", "Bearer sesam", "Bearer sesamé", "Basic sesame"):
            for path in ("/", "/events", "/other"):
                headers = {b"authorization": shown.encode()}
                answer = await one.client.get(path, headers=headers)
                assert (answer.status_code, "model" in answer.text) == (401, False)
                assert answer.headers["www-authenticate"] == "Bearer"
        assert (await one.client.get("/", headers=BEARER)).json()["model"] == "m"
        assert (await one.client.get("/other", headers=BEARER)).status_code == 404
        assert (await one.client.post("/", headers=BEARER)).status_code == 405
    with pytest.raises(httpx.TransportError):
        await httpx.AsyncClient().get(f"http://127.0.0.1:{one.port}/")


async def test_counters_come_each_second_and_violations_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with told(tmp_path) as one, one.follow() as lines:
        first = await anext(lines)
        assert first == {
            "boot": f"{one.state.boot:016x}",
            "steps": 1,
            "checked": 4,
            "violations": 0,
            "poisoned": False,
        }
        one.state.tell(9, 36, 0)
        assert one.feed
        one.feed.look()
        assert (await anext(lines))["steps"] == 9
        monkeypatch.setattr(telling, "EVERY_S", 600.0)
        await anext(lines)
        one.violate(salt="ab")
        assert (await anext(lines))["violations"] == 1
        assert (await anext(lines))["violation"]["salt"] == "ab"
        one.state.poison()
        one.feed.look()
        assert (await anext(lines))["poisoned"] is True


async def test_a_server_that_leaves_is_watched_to_its_end(tmp_path: Path) -> None:
    async with told(tmp_path) as one, one.follow() as lines:
        assert "leaving" not in await anext(lines)
        assert one.feed
        one.feed.leave()
        assert (await anext(lines))["leaving"] is True
        one.violate()
        assert await violations(lines, 1) == [1]
        async with one.follow() as late:
            assert (await anext(late))["leaving"] is True


async def test_the_stream_ends_with_the_life_and_the_next_begins_anew(tmp_path: Path) -> None:
    async with told(tmp_path) as one:
        async with one.follow() as lines:
            await anext(lines)
            one.journal.append({"kind": "foreign", "block": 7})
            assert one.feed
            one.feed.end()
            assert await violations(lines, 2) == [7]
        answer = await one.client.get("/events", headers=BEARER)
        assert (answer.status_code, "no guard runs" in answer.text) == (503, True)
        one.feed = None
        assert (await one.client.get("/events", headers=BEARER)).status_code == 503


async def test_who_was_cut_off_misses_nothing_and_who_is_new_hears_what_comes(
    tmp_path: Path,
) -> None:
    async with told(tmp_path) as one:
        one.violate(3)
        boot = f"{one.state.boot:016x}"
        async with one.follow(boot=boot, after=1) as again, one.follow() as new:
            await anext(again)
            await anext(new)
            one.violate()
            assert await violations(again, 3) == [2, 3, 4]
            assert await violations(new, 1) == [4]
        async with one.follow(boot="0" * 16, after=4) as of_another_life:
            assert await violations(of_another_life, 4) == [1, 2, 3, 4]
        async with one.follow(boot=boot, after="x") as odd:
            one.violate()
            assert await violations(odd, 1) == [5]


async def test_a_follower_that_reads_nothing_holds_up_nobody_and_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "STUCK_S", 0.5)
    async with told(tmp_path) as one, one.follow() as lines:
        await anext(lines)
        _, writer = await asyncio.open_connection("127.0.0.1", one.port, limit=1024)
        request = "GET /events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sesame\r\n\r\n"
        writer.write(request.encode())
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: one.telling.followers == 2)
        one.violate(2000, salt="ab" * 600)  # 2.5 MB: more than its sockets hold
        one.violate(2000, salt="ab" * 200)
        assert len(await violations(lines, 4000)) == 4000
        await until(lambda: one.telling.followers == 1)
        assert (await one.client.get("/", headers=BEARER)).json()["followers"] == 1
        writer.close()


async def test_there_are_only_so_many_and_who_leaves_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "MAX_FOLLOWERS", 1)
    async with told(tmp_path) as one:
        async with one.follow() as lines:
            await anext(lines)
            answer = await one.client.get("/events", headers=BEARER)
            assert (answer.status_code, "the most" in answer.text) == (503, True)
        await until(lambda: one.telling.followers == 0)
        async with one.follow() as lines:
            await anext(lines)
