"""A call that is cancelled closes its connection, wherever it stands; its answer reaches nobody."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Coroutine, Generator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.relay.errand import Errand
from gateway.relay.relay import Relay
from runtime.config.sections import RelaySettings
from tests.gateway.relaying import (
    ANSWER,
    BOTH,
    DONE,
    collect,
    deployment_of,
    errand,
    relaying,
    stream_ok,
    text,
    whole_ok,
)
from tests.runtime.upstream import Exchange, Upstream, upstream

PATIENT = RelaySettings(connect_s=60, start_s=60, first_byte_s=60, idle_s=60)
HEAD = b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
WHOLE_HEAD = b"HTTP/1.1 200 X\r\ncontent-length: 1000\r\n\r\n"


async def send(relay: Relay, given: Errand) -> None:
    await (collect(relay, given) if given.ask.stream else relay.whole(given))


async def leave(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


class Silent:
    """A server that says so much and no more, and notices when its caller has gone."""

    def __init__(self, *said: bytes) -> None:
        self.said = said
        self.reached, self.left = asyncio.Event(), asyncio.Event()

    async def __call__(self, exchange: Exchange) -> None:
        for part in self.said:
            await exchange.send(part)
        self.reached.set()
        await exchange.gone()
        self.left.set()


PHASES = {
    "sent, no headers": ((), ()),
    "headers, no body": ((HEAD,), (WHOLE_HEAD,)),
    "in the middle": ((HEAD, b"8\r\n: ping\n\n\r\n"), (WHOLE_HEAD, b'{"choices":')),
}


@BOTH
@pytest.mark.parametrize("phase", PHASES)
async def test_its_connection_is_closed(phase: str, streamed: bool) -> None:
    """production-stack#634, and litellm's calls that a client left before the first byte."""
    silent = Silent(*PHASES[phase][0 if streamed else 1])
    async with upstream(silent) as server, relaying(PATIENT) as relay, asyncio.timeout(30):
        of = deployment_of(server)
        task = asyncio.ensure_future(send(relay, errand(of=of, stream=streamed)))
        await silent.reached.wait()
        await asyncio.sleep(0.02)  # what it said arrives
        await leave(task)
        await silent.left.wait()
        (place,) = relay.attached.places(of, 60)
        assert (place.in_flight, place.tokens) == (0, 0)


@BOTH
async def test_while_it_waits_in_the_line_nothing_is_sent(streamed: bool) -> None:
    silent = Silent()
    async with upstream(silent) as server, relaying(PATIENT) as relay, asyncio.timeout(30):
        of = deployment_of(server, model={"max_in_flight": 1})
        first = asyncio.ensure_future(send(relay, errand(of=of, stream=streamed)))
        await silent.reached.wait()
        waiting = asyncio.ensure_future(send(relay, errand(of=of, stream=streamed)))
        line = relay.placement.line("ours")
        while not line.num_waiting:
            await asyncio.sleep(0.005)
        await leave(waiting)
        assert line.num_waiting == 0
        await leave(first)
        await silent.left.wait()
        assert len(server.asked) == 1


@BOTH
async def test_while_it_connects_the_connection_is_given_up(streamed: bool) -> None:
    """A handshake that never ends: the server is there, and TLS isn't."""
    reached, left = asyncio.Event(), asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        await reader.read()  # the client's hello, and then its end
        left.set()
        writer.close()

    async with relaying(PATIENT) as relay, asyncio.timeout(30):
        listening = await asyncio.start_server(deaf, "127.0.0.1", 0)
        server = Upstream(whole_ok, scheme="https")
        server.port = listening.sockets[0].getsockname()[1]
        task = asyncio.ensure_future(send(relay, errand(server, stream=streamed)))
        await reached.wait()
        await leave(task)
        await left.wait()
        listening.close()


class CancelledAt:
    """Awaits a coroutine, and has its task cancelled the `number`th time that it waits."""

    def __init__(self, work: Coroutine[Any, Any, Any], number: int) -> None:
        self.work = work
        self.number = number
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        step, given = self.work.send, None
        while True:
            try:
                found = step(given)
            except StopIteration as end:
                return end.value
            if self.waits == self.number:
                task = asyncio.current_task()
                assert task
                asyncio.get_running_loop().call_soon(task.cancel)
            self.waits += 1
            try:
                given = yield found
                step = self.work.send
            except BaseException as fault:  # noqa: BLE001 - it is handed on
                given, step = fault, self.work.throw


async def echoes(exchange: Exchange) -> None:
    """Answers with what it was asked, in pieces."""
    asked = exchange.json()["messages"][0]["content"]
    if exchange.json().get("stream"):
        await exchange.events(text(asked), end=False)
        await asyncio.sleep(0.001)
        for event in (text(asked, "stop"), DONE):
            await exchange.event(event)
        await exchange.send(b"0\r\n\r\n")
        return
    choice = {"index": 0, "message": {"content": asked}, "finish_reason": "stop"}
    body = json.dumps(ANSWER | {"choices": [choice]}).encode()
    await exchange.send(b"HTTP/1.1 200 X\r\ncontent-length: %d\r\n\r\n" % len(body))
    for at in range(0, len(body), 100):
        await exchange.send(body[at : at + 100])
        await asyncio.sleep(0.001)


@asynccontextmanager
async def echoing(streamed: bool) -> AsyncIterator[tuple[Upstream, Any]]:
    async with upstream(echoes) as server, relaying(PATIENT) as relay:
        of = deployment_of(server)

        async def ask(words: str) -> str:
            messages = [{"role": "user", "content": words}]
            given = errand(of=of, stream=streamed, messages=messages)
            if not streamed:
                body = json.loads((await relay.whole(given)).body)
                return str(body["choices"][0]["message"]["content"])
            frames = await collect(relay, given)
            events = b"".join(frame.data for frame in frames).split(b"\n\n")
            chunks = [json.loads(event[6:]) for event in events if event]
            return "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)

        yield server, ask
        (place,) = relay.attached.places(of, 60)
        assert (place.in_flight, place.tokens) == (0, 0)


@BOTH
async def test_f28_cancelled_at_every_await_no_answer_reaches_another(streamed: bool) -> None:
    """Fault F28: after each, the next call gets its own answer, and no connection is left over."""
    async with echoing(streamed) as (server, ask), asyncio.timeout(120):
        for number in itertools.count():
            run = CancelledAt(ask(f"lost {number};"), number)

            async def awaited(run: CancelledAt = run) -> Any:
                return await run

            lost = asyncio.ensure_future(awaited())
            await asyncio.wait([lost])
            found = await ask(f"own {number};")
            assert found == f"own {number};" * (2 if streamed else 1)
            if run.waits <= number:
                assert not lost.cancelled(), "it ended before it could be cancelled"
                break
            assert lost.cancelled()
        assert number >= 2, "it waits for its connection and its answer at least"
        while len(server._tasks) > 1:
            await asyncio.sleep(0.005)


@BOTH
async def test_f28_cancelled_at_any_moment_among_others(streamed: bool) -> None:
    """Forty at a time, every other one cancelled after so many turns of the loop."""
    async with echoing(streamed) as (server, ask), asyncio.timeout(120):
        for turns in range(0, 40, 3):
            lost = [asyncio.ensure_future(ask(f"lost {n};")) for n in range(20)]
            kept = [asyncio.ensure_future(ask(f"own {n};")) for n in range(20)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in lost:
                task.cancel()
            found = await asyncio.gather(*kept)
            await asyncio.wait(lost)
            assert found == [f"own {n};" * (2 if streamed else 1) for n in range(20)]
        while len(server._tasks) > 20:
            await asyncio.sleep(0.005)


async def test_a_server_that_answers_again_after_a_cancel_is_asked_as_ever() -> None:
    silent = Silent()
    async with upstream(silent) as server, relaying(PATIENT) as relay, asyncio.timeout(30):
        of = deployment_of(server)
        for _ in range(10):
            silent.reached.clear()
            task = asyncio.ensure_future(send(relay, errand(of=of)))
            await silent.reached.wait()
            await leave(task)
        server.answer = lambda e: (stream_ok if e.json().get("stream") else whole_ok)(e)
        await send(relay, errand(of=of))
