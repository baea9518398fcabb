"""Request events on their way: nobody waits for them, and what is lost is counted."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.events import MAX_KEPT, EventSender, result_of


class FixedClock:
    def now_us(self) -> int:
        return 1_700_000_000_250_000


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sock:
        sock.bind(str(path))
        sock.setblocking(False)
        yield sock
    path.unlink()


def received(sock: socket.socket) -> list[dict[str, Any]]:
    found = []
    while True:
        try:
            found.append(json.loads(sock.recv(65536)))
        except BlockingIOError:
            return found


async def settled(sock: socket.socket, count: int) -> list[dict[str, Any]]:
    """So many events, read as slowly as they come."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found += received(sock)
            await asyncio.sleep(0)
    return found


@pytest.fixture
async def sender(tmp_path: Path) -> EventSender:
    return EventSender(tmp_path / "e.sock", FixedClock(), look_every_s=0)


async def test_nobody_listens_and_nothing_happens(sender: EventSender, tmp_path: Path) -> None:
    sender.send({"status": 200})
    assert list(tmp_path.iterdir()) == []


async def test_a_listener_hears_the_fields_the_time_and_the_result(
    sender: EventSender, tmp_path: Path
) -> None:
    with listening(tmp_path / "e.sock") as sock:
        sender.send({"status": 200, "model": "echo", "outcome": "completed"})
        sender.send({"status": 404, "code": "model_not_found"})
        one, two = received(sock)
        assert one == {
            "event": "request",
            "timestamp": "2023-11-14T22:13:20.250000Z",
            "result": "ok",
            "status": 200,
            "model": "echo",
            "outcome": "completed",
        }
        assert (two["result"], two["code"]) == ("error", "model_not_found")
        sender.close()


async def test_a_burst_arrives_whole_and_in_order(sender: EventSender, tmp_path: Path) -> None:
    """The kernel holds as few as ten datagrams."""
    with listening(tmp_path / "e.sock") as sock:
        for n in range(500):
            sender.send({"status": 200, "n": n})
        assert [event["n"] for event in await settled(sock, 500)] == list(range(500))
        sender.send({"status": 200, "n": 500})
        assert [event["n"] for event in received(sock)] == [500]
        sender.close()


async def test_what_is_too_much_is_dropped_and_told(sender: EventSender, tmp_path: Path) -> None:
    with listening(tmp_path / "e.sock") as sock:
        for n in range(MAX_KEPT + 300):
            sender.send({"status": 200, "n": n})
        found = await settled(sock, MAX_KEPT)
        sender.send({"status": 200, "n": -1})
        found += await settled(sock, 1)
        assert found[-1]["dropped"] == MAX_KEPT + 300 - (len(found) - 1)
        assert [e["n"] for e in found[:-1]] == list(range(len(found) - 1))
        sender.send({"status": 200, "n": -2})
        assert "dropped" not in received(sock)[0]
        sender.close()


async def test_listeners_come_and_go(sender: EventSender, tmp_path: Path) -> None:
    path = tmp_path / "e.sock"
    with listening(path) as sock:
        sender.send({"status": 200, "n": 1})
        assert received(sock)[0]["n"] == 1
    sender.send({"status": 200, "n": 2})
    with listening(path) as sock:
        sender.send({"status": 200, "n": 3})
    with listening(path) as sock:  # the sender's connection leads to the one before
        sender.send({"status": 200, "n": 4})
        assert [event["n"] for event in received(sock)] == [4]
    sender.close()


async def test_a_listener_that_dies_with_its_queue_full_is_forgotten(
    sender: EventSender, tmp_path: Path
) -> None:
    path = tmp_path / "e.sock"
    with listening(path) as sock:
        for n in range(100):
            sender.send({"status": 200, "n": n})
    with listening(path) as sock:
        async with asyncio.timeout(10):
            while 100 not in [event["n"] for event in received(sock)]:
                sender.send({"status": 200, "n": 100})
                await asyncio.sleep(0.001)
    sender.close()


async def test_a_socket_file_of_a_killed_process_is_nobody(
    sender: EventSender, tmp_path: Path
) -> None:
    path = tmp_path / "e.sock"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sock:
        sock.bind(str(path))
    sender.send({"status": 200})
    path.unlink()
    with listening(path) as sock:
        sender.send({"status": 200, "n": 1})
        assert received(sock)[0]["n"] == 1
    sender.close()


async def test_an_event_that_can_not_be_sent_is_given_up(
    sender: EventSender, tmp_path: Path
) -> None:
    with listening(tmp_path / "e.sock") as sock:
        sender.send({"status": 200, "huge": "x" * 1_000_000})
        sender.send({"status": 200, "n": 1})
        assert [event["n"] for event in received(sock)] == [1]
        sender.close()


@pytest.mark.parametrize(
    ("fields", "result"),
    [
        ({"status": 200}, "ok"),
        ({"status": 200, "outcome": "completed"}, "ok"),
        ({"status": 200, "outcome": "upstream_error", "code": "upstream_error"}, "error"),
        ({"status": 200, "outcome": "client_cancelled"}, "canceled"),
        ({"status": 499}, "canceled"),
        ({"status": 401, "code": "invalid_api_key"}, "error"),
        ({"status": 500}, "error"),
        ({"status": 0}, "error"),
        ({}, "error"),
    ],
)
def test_a_result_in_one_word(fields: dict[str, Any], result: str) -> None:
    assert result_of(fields) == result


async def test_a_listener_is_looked_for_now_and_then_alone(tmp_path: Path) -> None:
    sender = EventSender(tmp_path / "e.sock", FixedClock(), look_every_s=60)
    sender.send({"status": 200, "n": 1})
    with listening(tmp_path / "e.sock") as sock:
        sender.send({"status": 200, "n": 2})
        sender._look_at = 0.0  # a minute later
        sender.send({"status": 200, "n": 3})
        assert [event["n"] for event in received(sock)] == [3]
    sender.close()
