"""A stream that is silent gets a comment, by a timer and not by a task of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.asgi import Call
from gateway.kept_alive import KeptAlive
from runtime.wire import DONE, KEEP_ALIVE

TURNS = 100  # of the loop, for what is due at once


class Client:
    """Takes what it is sent once it is `ready`."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.sent: list[bytes] = []
        self.ends: list[bool] = []

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            await self.ready.wait()
            self.sent.append(message["body"])
            self.ends.append(not message.get("more_body", False))

    async def receive(self) -> Any:
        """It says nothing."""

    def call(self) -> Call:
        """A request of it."""
        return Call({"type": "http", "headers": [], "http_version": "1.1"}, self.receive, self)


async def until_it_writes(kept_alive: KeptAlive) -> None:
    async with asyncio.timeout(60):
        while kept_alive.writing is None:
            await asyncio.sleep(0)


async def test_an_event_waits_for_a_comment_that_is_being_written() -> None:
    client = Client()
    call = client.call()
    async with call.kept_alive(0) as kept_alive:
        await until_it_writes(kept_alive)
        event = asyncio.ensure_future(call.event(b"data: 1\n\n"))
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert not event.done()
        client.ready.set()
        await event
    await call.end(DONE)
    assert client.sent[0] == KEEP_ALIVE
    assert b"".join(client.sent).replace(KEEP_ALIVE, b"") == b"data: 1\n\n" + DONE


async def test_an_event_that_is_given_up_leaves_the_comment_to_be_written() -> None:
    client = Client()
    call = client.call()
    async with call.kept_alive(0) as kept_alive:
        await until_it_writes(kept_alive)
        event = asyncio.ensure_future(call.event(b"data: 1\n\n"))
        await asyncio.sleep(0)
        event.cancel()
        with pytest.raises(asyncio.CancelledError):
            await event
        assert kept_alive.writing is not None
        assert not kept_alive.writing.done()


async def test_the_last_events_and_the_end_are_one_message() -> None:
    client = Client()
    client.ready.set()
    call = client.call()
    await call.event(b"data: 1\n\n")
    await call.end(DONE)
    assert (client.sent, client.ends) == ([b"data: 1\n\n", DONE], [False, True])


@pytest.mark.parametrize("turns", range(4))
async def test_nothing_is_written_once_it_is_left(turns: int) -> None:
    """However near the moment is at which a comment has just been written."""
    written = 0

    async def write() -> None:
        nonlocal written
        written += 1
        await asyncio.sleep(0)

    async with KeptAlive(0, lambda: 1.0, write) as kept_alive:
        await until_it_writes(kept_alive)
        for _ in range(turns):
            await asyncio.sleep(0)
    before = written
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert written == before
    assert kept_alive.writing is None


async def test_a_client_that_left_is_written_to_no_more() -> None:
    tries = 0

    async def write() -> None:
        nonlocal tries
        tries += 1
        raise OSError("it is gone")

    async with KeptAlive(0, lambda: 1.0, write) as kept_alive:
        await until_it_writes(kept_alive)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert tries == 1
