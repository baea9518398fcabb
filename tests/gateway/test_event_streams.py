"""Answers that are streamed over a real uvicorn: events, comments between them, and failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from gateway.asgi import Call
from gateway.errors import (
    IntegrityAbort,
    Refusal,
    Unauthorized,
    UpstreamFailed,
)
from runtime.wire import DONE, KEEP_ALIVE
from tests.gateway.calls import events_of, served


async def test_events_leave_as_they_were_written(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        await call.event(b"data: 1\n\n")
        await call.event(b"data: 2\n\n")
        await call.end(DONE)

    async with served(tmp_path, work) as app:
        assert await events_of(app) == b"data: 1\n\ndata: 2\n\n" + DONE


async def test_a_silent_stream_is_kept_alive_between_whole_events(tmp_path: Path) -> None:
    """Comments before the first event and between two; each event stays in one piece."""
    event = b"data: " + b"x" * 100_000 + b"\n\n"

    async def work(call: Call) -> None:
        async with call.kept_alive(0.02):
            await asyncio.sleep(0.07)
            for _ in range(3):
                await call.event(event)
            await asyncio.sleep(0.07)
        await call.end(DONE)

    async with served(tmp_path, work) as app:
        data = await events_of(app)
        assert data.startswith(KEEP_ALIVE)
        before, _, after = data.partition(event * 3)
        assert before == KEEP_ALIVE * (len(before) // len(KEEP_ALIVE)) != b""
        comments = after.removesuffix(DONE)
        assert comments == KEEP_ALIVE * (len(comments) // len(KEEP_ALIVE)) != b""


async def test_a_lively_stream_has_no_comments(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        async with call.kept_alive(5):
            for _ in range(20):
                await call.event(b"data: x\n\n")
        await call.end(DONE)

    async with served(tmp_path, work) as app:
        assert b":" not in (await events_of(app)).replace(b"data:", b"")


@pytest.mark.parametrize(
    ("fault", "status", "retry"),
    [(Unauthorized("no"), 401, None), (IntegrityAbort("no"), 503, "1"),
     (UpstreamFailed("no"), 502, None)],
)  # fmt: skip
async def test_a_failure_before_the_first_event_has_its_status(
    tmp_path: Path, fault: Refusal, status: int, retry: str | None
) -> None:
    async def work(call: Call) -> None:
        async with call.kept_alive(5):
            raise fault

    async with served(tmp_path, work) as app:
        answer = await app.http.post("/")
        assert (answer.status_code, answer.json()) == (status, fault.body())
        assert answer.headers.get("retry-after") == retry
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("by", ["an event", "a comment"])
async def test_a_failure_after_it_is_an_error_event_and_no_done(tmp_path: Path, by: str) -> None:
    async def work(call: Call) -> None:
        if by == "an event":
            await call.event(b"data: 1\n\n")
        else:
            async with call.kept_alive(0.01):
                await asyncio.sleep(0.05)
        raise UpstreamFailed("the engine failed")

    async with served(tmp_path, work) as app:
        data = await events_of(app)
        last = data.split(b"\n\n")[-2]
        assert (
            json.loads(last.removeprefix(b"data: ")) == UpstreamFailed("the engine failed").body()
        )
        assert b"[DONE]" not in data


async def test_a_body_of_unknown_length_is_streamed(tmp_path: Path) -> None:
    async def rows() -> AsyncIterator[bytes]:
        for i in range(3):
            yield b"row %d\n" % i

    async def work(call: Call) -> None:
        await call.stream(200, b"text/csv", rows())

    async with served(tmp_path, work) as app:
        answer = await app.http.post("/")
        assert answer.text == "row 0\nrow 1\nrow 2\n"
        assert answer.headers["content-type"] == "text/csv"


async def test_a_stream_that_breaks_is_not_ended_as_if_it_were_whole(tmp_path: Path) -> None:
    async def rows() -> AsyncIterator[bytes]:
        yield b"row 0\n"
        raise UpstreamFailed("the disk is gone")

    async def work(call: Call) -> None:
        await call.stream(200, b"text/csv", rows())

    async with served(tmp_path, work) as app:
        with pytest.raises(httpx.RemoteProtocolError):
            await app.http.post("/")
