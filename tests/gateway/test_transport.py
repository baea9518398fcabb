"""The transport over real sockets: no reply ever reaches the wrong caller."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from gateway.relay.http1.connection import BUFFER_BYTES, HIGH_WATER_BYTES
from gateway.relay.transport import Broken, ConnectFailed, Transport
from tests.runtime.upstream import Answer, Exchange, Upstream, upstream


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both loops that the gateway runs on: its workers' is uvloop's, where that is installed."""
    return "asyncio", {"use_uvloop": request.param}


@asynccontextmanager
async def between(answer: Answer) -> AsyncIterator[tuple[Upstream, Transport]]:
    async with upstream(answer) as server:
        transport = Transport(connect_s=5)
        try:
            yield server, transport
        finally:
            await transport.aclose()


async def echo(exchange: Exchange) -> None:
    await exchange.reply(200, exchange.body)


async def ask(server: Upstream, transport: Transport, body: bytes) -> bytes:
    async with transport.send("POST", f"{server.url}/", {}, body) as reply:
        return await reply.read(1_000_000)


async def test_a_connection_is_used_again_once_its_answer_was_read() -> None:
    async with between(echo) as (server, transport):
        for i in range(20):
            body = b"body %d" % i
            assert await ask(server, transport, body) == body
        assert server.connections == 1


async def test_an_answer_is_taken_once_its_end_was() -> None:
    async with (
        between(echo) as (server, transport),
        transport.send("POST", f"{server.url}/", {}, b"body") as reply,
    ):
        assert not reply.is_taken
        assert await reply.read(100) == b"body"
        assert reply.is_taken


async def test_many_at_once_each_get_their_own_answer() -> None:
    async with between(echo) as (server, transport):
        bodies = [b"%d" % i for i in range(100)]
        assert await asyncio.gather(*(ask(server, transport, b) for b in bodies)) == bodies


async def test_an_answer_left_early_closes_its_connection() -> None:
    closed = asyncio.Event()

    async def answer(exchange: Exchange) -> None:
        if exchange.body == b"left":
            await exchange.events({"part": 1}, end=False)
            await exchange.gone()
            closed.set()
            exchange.close()
        else:
            await echo(exchange)

    async with between(answer) as (server, transport):
        async with transport.send("POST", f"{server.url}/", {}, b"left") as reply:
            assert b"part" in (await reply.chunk() or b"")
        await asyncio.wait_for(closed.wait(), 10)
        assert await ask(server, transport, b"next") == b"next"
        assert server.connections == 2


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
PHASES = {
    "before the status": b"",
    "within the head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "after the head": b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n",
    "within the body": b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nst",
    "within a chunk": CHUNKED + b"4\r\nst",
    "between chunks": CHUNKED + b"4\r\nstol\r\n",
}


@pytest.mark.parametrize("phase", PHASES)
async def test_a_cancelled_call_closes_its_connection_and_reaches_nobody_else(phase: str) -> None:
    """In each phase of an answer; the server notices, and the next caller gets its own reply."""
    reached, closed = asyncio.Event(), asyncio.Event()

    async def answer(exchange: Exchange) -> None:
        if exchange.body != b"cancelled":
            await echo(exchange)
            return
        await exchange.send(PHASES[phase])
        reached.set()
        await exchange.gone()
        closed.set()
        exchange.close()

    async with between(answer) as (server, transport):
        call = asyncio.ensure_future(ask(server, transport, b"cancelled"))
        await reached.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(closed.wait(), 10)
        assert await ask(server, transport, b"mine") == b"mine"


async def test_cancelled_at_any_turn_of_the_loop_no_reply_is_misdelivered() -> None:
    """Each number of turns that a call can take before it is cancelled, on a warm connection."""
    async with between(echo) as (server, transport):
        finished = False
        turns = 0
        while not finished:
            await ask(server, transport, b"warm up")
            call = asyncio.ensure_future(ask(server, transport, b"stolen %d" % turns))
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            (result,) = await asyncio.gather(call, return_exceptions=True)
            finished = isinstance(result, bytes)
            mine = [b"%d/%d" % (turns, i) for i in range(3)]
            assert await asyncio.gather(*(ask(server, transport, b) for b in mine)) == mine
            turns += 1
            assert turns < 2000
        assert turns > 3, "it was cancelled at several points"


async def test_no_connection_is_told_apart_from_a_broken_one(tmp_path: Path) -> None:
    """Nothing was sent, so the request may go elsewhere."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    for transport, url in (
        (Transport(), f"http://127.0.0.1:{port}/"),
        (Transport(str(tmp_path / "none.sock")), "http://host/"),
        (Transport(), "http://name.invalid/"),
    ):
        with pytest.raises(ConnectFailed):
            async with transport.send("POST", url, {}, b""):
                pass
        await transport.aclose()


async def test_a_connection_that_takes_too_long_is_no_connection() -> None:
    """Nothing was sent: it is not a broken answer."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        fill = [socket.socket() for _ in range(2)]
        for one in fill:  # the queue is full now: the kernel drops further attempts
            one.setblocking(False)
            one.connect_ex(sock.getsockname())
        transport = Transport(connect_s=0.2)
        with pytest.raises(ConnectFailed):
            async with transport.send(
                "POST", f"http://127.0.0.1:{sock.getsockname()[1]}/", {}, b""
            ):
                pass
        await transport.aclose()
        for one in fill:
            one.close()


BROKEN = {
    "nothing": b"",
    "not HTTP": b"SSH-2.0-OpenSSH_9\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-",
    "a short body": b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
    "chunks without their end": CHUNKED + b"3\r\nabc\r\n",
    "a cut chunk": CHUNKED + b"9\r\nabc",
    "a wrong chunk": CHUNKED + b"zz\r\nabc\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("hard", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("name", BROKEN)
async def test_an_answer_that_stops_is_broken(name: str, hard: bool) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.send(BROKEN[name])
        await asyncio.sleep(0.01)
        exchange.reset() if hard else exchange.close()

    async with between(answer) as (server, transport):
        with pytest.raises(Broken):
            await ask(server, transport, b"x")


async def test_an_answer_over_the_limit_is_broken() -> None:
    async with between(echo) as (server, transport):
        async with transport.send("POST", f"{server.url}/", {}, b"x" * 11) as reply:
            with pytest.raises(Broken, match="more than 10 bytes"):
                await reply.read(10)
        assert await ask(server, transport, b"next") == b"next"


async def test_the_engine_is_sent_only_what_it_was_told() -> None:
    async with between(echo) as (server, transport):
        headers = {"content-type": "application/json", "x-a": "b"}
        async with transport.send("POST", f"{server.url}/p?q=1", headers, b"{}") as reply:
            await reply.read(10)
        sent = dict(server.asked[0].headers)
        del sent["host"]
        assert sent == headers | {"accept-encoding": "identity", "content-length": "2"}
        assert server.asked[0].path == "/p?q=1"


async def test_redirects_cookies_and_compression_are_left_alone() -> None:
    packed = gzip.compress(b"text")
    head = b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\nset-cookie: a=b\r\n"

    async def answer(exchange: Exchange) -> None:
        await exchange.send(
            head + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed) + packed
        )

    async with between(answer) as (server, transport):
        for _ in range(2):
            async with transport.send("POST", f"{server.url}/", {}, b"") as reply:
                assert (reply.status, await reply.read(100)) == (302, packed)
        assert server.asked[1].header("cookie") is None


async def test_a_retired_transport_lets_running_exchanges_end_and_then_closes() -> None:
    go = asyncio.Event()

    async def answer(exchange: Exchange) -> None:
        await exchange.events({"n": 1}, end=False)
        await go.wait()
        await exchange.event({"n": 2})
        await exchange.send(b"0\r\n\r\n")
        await exchange.gone()

    async with between(answer) as (server, transport):
        async with transport.send("POST", f"{server.url}/", {}, b"") as reply:
            await transport.retire()
            assert transport.num_connections == 1
            await reply.chunk()
            go.set()
            assert b'"n": 2' in await reply.read(10**6)
        assert transport.num_connections == 0


async def test_a_request_that_comes_late_to_a_retired_transport_is_answered() -> None:
    """It was given this way before; the way is closed again behind it."""
    async with between(echo) as (server, transport):
        await ask(server, transport, b"early")
        await transport.retire()
        assert transport.num_connections == 0
        assert await ask(server, transport, b"late") == b"late"
        assert transport.num_connections == 0


async def test_the_httpx_face_answers_and_streams() -> None:
    async def answer(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await exchange.events({"n": 1}, {"n": 2})
        else:
            await exchange.reply(418, exchange.body)

    async with upstream(answer) as server, httpx.AsyncClient(transport=Transport()) as client:
        teapot = await client.post(f"{server.url}/", content=b"tea")
        assert (teapot.status_code, teapot.content) == (418, b"tea")
        async with client.stream("GET", f"{server.url}/") as streamed:
            assert [line async for line in streamed.aiter_lines() if line] == [
                'data: {"n": 1}', 'data: {"n": 2}',
            ]  # fmt: skip
        assert server.connections == 1


@pytest.mark.parametrize("name", BROKEN)
async def test_the_httpx_face_raises_httpx_s_errors(name: str) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.send(BROKEN[name])
        exchange.close()

    async with upstream(answer) as server, httpx.AsyncClient(transport=Transport()) as client:
        with pytest.raises(httpx.TransportError):
            await client.get(f"{server.url}/")
    async with httpx.AsyncClient(transport=Transport()) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{server.url}/")


GOOD = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"


@pytest.mark.parametrize("stray", [GOOD + b"evil", b"\r\n", b"HTTP/1.1 408 Late\r\n\r\n", b"x"])
@pytest.mark.parametrize("when", ["at once", "later", "unread"])
async def test_what_nobody_asked_for_reaches_nobody(when: str, stray: bytes) -> None:
    """With the answer, after it, or unread in the system when the next request is to be sent."""
    taken = asyncio.get_running_loop().create_future()

    async def answer(exchange: Exchange) -> None:
        await exchange.send(GOOD + b"mine" + (stray if when == "at once" else b""))
        number = exchange._writer.get_extra_info("socket").fileno()
        taken.set_result(socket.socket(fileno=os.dup(number)))
        await exchange.gone()

    async with between(answer) as (server, transport):
        assert await ask(server, transport, b"first") == b"mine"
        server.answer = echo
        with await taken as sock:
            if when != "at once":
                sock.sendall(stray)
            if when == "later":
                await asyncio.sleep(0.01)
            assert await ask(server, transport, b"next") == b"next"
        assert server.connections == 2


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_kept_connection_that_dies_is_met_once_more_only_if_it_can_not_matter(
    method: str,
) -> None:
    async def answer(exchange: Exchange) -> None:
        await echo(exchange)
        server.answer = dies

    async def dies(exchange: Exchange) -> None:
        server.answer = echo
        exchange.close()

    async with between(answer) as (server, transport):
        await ask(server, transport, b"warm up")
        exchange = transport.send(method, f"{server.url}/", {}, b"x" if method == "POST" else None)
        if method == "GET":
            async with exchange as reply:
                assert reply.status == 200
        else:
            with pytest.raises(Broken):
                await exchange.begin()
        assert [asked.method for asked in server.asked[1:]] == [method] * (1 + (method == "GET"))


async def test_who_does_not_read_holds_no_more_than_two_buffers() -> None:
    sent = 0

    async def answer(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.send(b"HTTP/1.1 200 OK\r\ncontent-length: 40000000\r\n\r\n")
        for _ in range(40):
            await exchange.send(bytes(1_000_000))
            sent += 1

    async with between(answer) as (server, transport):
        async with transport.send("POST", f"{server.url}/", {}, b"") as reply:
            for _ in range(100):
                await asyncio.sleep(0.001)
            assert reply._answer.held <= HIGH_WATER_BYTES + BUFFER_BYTES
            assert sent < 40
            assert len(await reply.read(40_000_000)) == 40_000_000
        assert transport.num_connections == 1


async def test_an_idle_connection_is_given_up_in_time() -> None:
    async with upstream(echo) as server:
        transport = Transport(keep_alive_s=0.05)
        await ask(server, transport, b"x")
        assert transport.num_connections == 1
        async with asyncio.timeout(10):
            while transport.num_connections:
                await asyncio.sleep(0.01)
        await transport.aclose()


@pytest.mark.parametrize("name", ["x\r\ny", "x\ny", "x\0", "x\r"])
async def test_no_field_can_become_two(name: str) -> None:
    transport = Transport()
    for headers in ({"x": name}, {name: "x"}):
        with pytest.raises(ValueError, match="line break"):
            transport.send("POST", "http://127.0.0.1:1/", headers, b"")
