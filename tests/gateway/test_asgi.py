"""One exchange over a real uvicorn: the body, the client that leaves, the limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway import asgi
from gateway.asgi import Call
from gateway.errors import (
    Stopping,
    TookTooLong,
    Unauthorized,
)
from runtime.wire import DONE
from tests.gateway.calls import LIMIT, echo, events_of, served


async def test_a_body_is_read_whole_and_answered_with_the_request_s_id(tmp_path: Path) -> None:
    async with served(tmp_path, echo) as app:
        for body in (b"", b"{}", b"x" * LIMIT):
            answer = await app.http.post("/", content=body)
            assert (answer.status_code, answer.content) == (200, body)
            assert answer.headers["x-request-id"].startswith("req_")
            assert answer.headers["content-type"] == "application/json"


async def test_a_body_over_the_limit_is_refused(tmp_path: Path) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x" * 300

    async with served(tmp_path, echo) as app:
        for content in (b"x" * (LIMIT + 1), parts()):
            answer = await app.http.post("/", content=content)
            assert answer.status_code == 413
            assert answer.json()["error"]["code"] == "request_too_large"
            assert "1000 bytes" in answer.json()["error"]["message"]


async def test_a_declared_length_over_the_limit_is_refused_before_a_byte_is_read(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, echo) as app:
        reader, writer = await app.connect(b"content-length: 10000000000\r\n\r\n")
        assert b"413" in await asyncio.wait_for(reader.readline(), 30)
        writer.close()


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "gzip, gzip", "x"])
async def test_a_compressed_body_is_refused_unread(tmp_path: Path, encoding: str) -> None:
    async with served(tmp_path, echo) as app:
        answer = await app.http.post("/", content=b"x", headers={"content-encoding": encoding})
        assert answer.status_code == 415
        plain = await app.http.post("/", content=b"x", headers={"content-encoding": "identity"})
        assert plain.content == b"x"


async def test_a_client_that_leaves_while_it_sends_is_gone(tmp_path: Path) -> None:
    async with served(tmp_path, echo) as app:
        _, writer = await app.connect(b"content-length: 500\r\n\r\nhalf of it")
        writer.close()
        assert await app.ended() == "gone"


async def test_a_client_that_leaves_cancels_the_work(tmp_path: Path) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def work(call: Call) -> None:
        await call.body(LIMIT)
        async with call.watched():
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

    async with served(tmp_path, work) as app:
        _, writer = await app.connect(b"content-length: 0\r\n\r\n")
        await started.wait()
        writer.close()
        assert await app.ended() == "gone"
        assert cancelled.is_set()


async def test_a_cancellation_from_elsewhere_is_no_client_that_left() -> None:
    async def never() -> dict[str, str]:
        await asyncio.Event().wait()
        raise AssertionError

    async def work() -> None:
        call = Call({"type": "http", "headers": []}, never, lambda _: asyncio.sleep(0))
        async with call.watched():
            await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_call_that_takes_too_long_is_504(tmp_path: Path) -> None:
    """Whatever it waits for: its own work, or a client that doesn't send its body."""
    cancelled = asyncio.Event()

    async def work(call: Call) -> None:
        with call.limited(0.05):
            await call.body(LIMIT)
            async with call.watched():
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.set()

    async with served(tmp_path, work) as app:
        answer = await app.http.post("/", content=b"{}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "request_timeout")
        assert "0.05 s" in answer.json()["error"]["message"]
        assert cancelled.is_set()
        reader, writer = await app.connect(b"content-length: 500\r\n\r\nhalf of it")
        assert b"504" in await asyncio.wait_for(reader.readline(), 30)
        writer.close()


async def test_a_body_that_takes_too_long_is_408_and_ends_the_connection(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        await call.send_json(200, await call.body(LIMIT, 0.05))

    async with served(tmp_path, work) as app:
        reader, writer = await app.connect(b"content-length: 500\r\n\r\nhalf of it")
        answer = await asyncio.wait_for(reader.read(), 30)
        assert b" 408 " in answer.splitlines()[0]
        assert b'"request_too_slow"' in answer
        assert b"within 0.05 s" in answer
        writer.close()


async def test_a_stream_that_takes_too_long_ends_in_an_error_event(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        with call.limited(0.05):
            async with call.watched():
                await call.event(b"data: 1\n\n")
                await asyncio.Event().wait()

    async with served(tmp_path, work) as app:
        data = await events_of(app)
        assert b'"request_timeout"' in data
        assert b"[DONE]" not in data


async def test_a_limit_that_isn_t_reached_leaves_nothing_behind(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        await call.body(LIMIT)
        with call.limited(0):
            pass  # it is over before its time could come
        await asyncio.sleep(0.01)
        async with call.watched():
            await asyncio.sleep(0.01)
        await call.send_json(200, b"{}")

    async with served(tmp_path, work) as app:
        assert (await app.http.post("/")).status_code == 200


async def test_a_call_that_is_stopped_between_two_steps_ends_at_the_next(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        await call.body(LIMIT)
        call.stop(Stopping("the server stops"))
        async with call.watched():
            raise AssertionError("it went on")

    async with served(tmp_path, work) as app:
        assert (await app.http.post("/")).json()["error"]["code"] == "server_stopping"


async def test_the_first_reason_to_stop_counts(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        await call.body(LIMIT)
        async with call.watched():
            call.stop(Stopping("the server stops"))
            call.stop(TookTooLong("too long"))
            await asyncio.Event().wait()

    async with served(tmp_path, work) as app:
        assert (await app.http.post("/")).json()["error"]["code"] == "server_stopping"


async def test_a_client_that_reads_nothing_isn_t_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket is full when the server stops: it gets no farewell, and the call ends."""
    monkeypatch.setattr(asgi, "FAREWELL_S", 0.1)

    async def work(call: Call) -> None:
        await call.body(LIMIT)
        asyncio.get_running_loop().call_later(0.2, call.stop, Stopping("the server stops"))
        async with call.watched():
            while True:
                await call.event(b"x" * 100_000)

    async with served(tmp_path, work) as app:
        _, writer = await app.connect(b"content-length: 0\r\n\r\n")
        assert await app.ended() == "answered"
        writer.close()


async def test_a_client_that_reads_nothing_until_its_time_is_over_has_left(tmp_path: Path) -> None:
    """Else it would have what it was sent for nothing: what takes too long isn't billed."""

    async def work(call: Call) -> None:
        with call.limited(0.5):
            await call.body(LIMIT)
            async with call.watched():
                while True:
                    await call.event(b"x" * 100_000)

    async with served(tmp_path, work) as app:
        _, writer = await app.connect(b"content-length: 0\r\n\r\n")
        assert await app.ended() == "gone"
        writer.close()


async def test_every_answer_carries_the_call_s_extra_headers(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        call.extra[b"vary"] = b"Origin"
        if await call.body(LIMIT) == b"fail":
            raise Unauthorized("no")
        await call.end(DONE)

    async with served(tmp_path, work) as app:
        for content in (b"", b"fail"):
            answer = await app.http.post("/", content=content)
            assert answer.headers["vary"] == "Origin"
