"""Where events arrive: bound while somebody listens, and fair to each listener."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from pathlib import Path

import pytest

from gateway.admin.hub import MAX_WAITING, EventHub, TooManyListeners
from gateway.clock import SYSTEM_CLOCK
from gateway.events import EventSender


def send(path: Path, *datagrams: bytes) -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sock:
        for data in datagrams:
            sock.sendto(data, str(path))


async def test_the_socket_is_there_while_somebody_listens(tmp_path: Path) -> None:
    path = tmp_path / "e.sock"
    hub = EventHub(path)
    with hub.listen() as one:
        assert path.is_socket()
        with hub.listen() as two:
            assert hub.num_listeners == 2
            send(path, b'{"n": 1}')
            assert await one.take(5) == [{"n": 1}]
            assert await two.take(5) == [{"n": 1}]
        assert path.is_socket()
    assert not path.exists()
    with hub.listen() as again:
        send(path, b'{"n": 2}')
        assert await again.take(5) == [{"n": 2}]


async def test_a_killed_process_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "e.sock"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as left_behind:
        left_behind.bind(str(path))
    with EventHub(path).listen() as listener:
        send(path, b'{"n": 1}')
        assert await listener.take(5) == [{"n": 1}]


async def test_from_a_worker_to_a_listener(tmp_path: Path) -> None:
    """Both ends, a burst far over what the kernel holds."""
    hub = EventHub(tmp_path / "e.sock")
    sender = EventSender(tmp_path / "e.sock", SYSTEM_CLOCK)
    with hub.listen() as listener:
        for n in range(700):
            sender.send({"status": 200, "n": n})
        seen: list[int] = []
        async with asyncio.timeout(20):
            while len(seen) < 700:
                seen += [event["n"] for event in await listener.take(1)]
        assert seen == list(range(700))
        sender.close()


async def test_nothing_comes_and_the_wait_ends(tmp_path: Path) -> None:
    with EventHub(tmp_path / "e.sock").listen() as listener:
        assert await listener.take(0.001) == []
        assert not listener.is_closed


async def test_a_slow_listener_loses_events_and_is_told_how_many(tmp_path: Path) -> None:
    hub = EventHub(tmp_path / "e.sock")
    with hub.listen() as slow:
        for n in range(MAX_WAITING + 5):
            slow.put({"n": n})
        slow.put({"n": -1, "dropped": 2})  # lost, and with it the tale of two others
        assert len(await slow.take(1)) == MAX_WAITING
        slow.put({"n": 1, "dropped": 3})
        slow.put({"n": 2})
        assert await slow.take(1) == [{"n": 1, "dropped": 5 + 1 + 2 + 3}, {"n": 2}]


async def test_what_is_no_event_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "e.sock"
    with EventHub(path).listen() as listener:
        send(path, b"not json", b"[1]", b'{"n": 1}')
        assert await listener.take(5) == [{"n": 1}]


async def test_a_closed_hub_lets_everybody_go(tmp_path: Path) -> None:
    hub = EventHub(tmp_path / "e.sock")
    with hub.listen() as listener:
        waiting = asyncio.ensure_future(listener.take(60))
        await asyncio.sleep(0)
        listener.put({"n": 1})
        hub.close()
        assert await waiting == [{"n": 1}]
        assert listener.is_closed
        assert not (tmp_path / "e.sock").exists()
        assert await listener.take(60) == []
    with hub.listen() as late:
        assert late.is_closed
        assert not (tmp_path / "e.sock").exists()


async def test_there_is_an_end_to_listeners(tmp_path: Path) -> None:
    hub = EventHub(tmp_path / "e.sock", max_listeners=1)
    with hub.listen(), pytest.raises(TooManyListeners), hub.listen():
        pass
    with hub.listen():
        assert hub.num_listeners == 1
