"""The one socket: whose it is, and a process that takes no more from it."""

from __future__ import annotations

import asyncio
import socket

import pytest

from runtime.tls import listener as module
from runtime.tls.listener import PortInUse, bind, hang_up, listen, port_of, stop_accepting
from tests.stack import free_port


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PORT_WAIT_S", 0.0)


def test_nobody_is_heard_before_it_listens() -> None:
    with bind("127.0.0.1", free_port()) as sock:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(sock.getsockname())
        listen(sock)
        socket.create_connection(sock.getsockname()).close()


def test_a_second_is_refused_with_what_to_do() -> None:
    with bind("127.0.0.1", free_port()) as sock:
        listen(sock)
        port = sock.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"127.0.0.1:{port} can't be .*in use.*--port"):
            bind("127.0.0.1", port)


def test_of_two_that_were_bound_at_once_one_listens() -> None:
    port = free_port()
    with bind("127.0.0.1", port) as one, bind("127.0.0.1", port) as other:
        listen(one)
        with pytest.raises(PortInUse, match=str(port)):
            listen(other)


def test_one_that_shares_its_port_is_in_use_too() -> None:
    """granian and others bind with SO_REUSEPORT."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(PortInUse):
            bind("127.0.0.1", other.getsockname()[1])


def test_an_address_that_is_not_ours() -> None:
    with pytest.raises(PortInUse, match=r"192\.0\.2\.1"):
        bind("192.0.2.1", 1)
    with pytest.raises(PortInUse, match=r"no-such-host.invalid:1 can't be .*correct --host"):
        bind("no-such-host.invalid", 1)


def test_names_and_ipv6() -> None:
    with bind("localhost", free_port()) as sock:
        assert sock.getsockname()[0] in ("127.0.0.1", "::1")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    with bind("::1", free_port()) as sock:
        assert sock.family is socket.AF_INET6


async def test_it_takes_no_more_and_keeps_what_it_has() -> None:
    """What is queued waits for another; a connection that was taken goes on."""
    taken = asyncio.Queue[bytes]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.put_nowait(b"")
        writer.write(await reader.readline())
        writer.close()

    with bind("127.0.0.1", free_port()) as sock:
        listen(sock)
        sock.setblocking(False)
        async with await asyncio.start_server(answer, sock=sock.dup()) as server:
            fd = server.sockets[0].fileno()
            first, first_writer = await asyncio.open_connection(*sock.getsockname())
            await taken.get()
            assert stop_accepting(fd)
            assert not stop_accepting(fd), "it has left already"
            second, second_writer = await asyncio.open_connection(*sock.getsockname())
            first_writer.write(b"still here\n")
            assert await first.readline() == b"still here\n"
            assert taken.empty()
            other, _ = sock.accept()
            with other:
                other.sendall(b"from another\n")
                assert await second.readline() == b"from another\n"
            for writer in (first_writer, second_writer):
                writer.close()
                await writer.wait_closed()


async def test_a_connection_that_is_hung_up_ends_for_the_server_and_is_still_answered() -> None:
    """One that came to another port goes on."""
    read = asyncio.Queue[bytes]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        read.put_nowait(await reader.read())
        writer.write(b"farewell")
        writer.close()

    with bind("127.0.0.1", free_port()) as sock:
        listen(sock)
        sock.setblocking(False)
        async with await asyncio.start_server(answer, sock=sock.dup()) as server:
            reader, writer = await asyncio.open_connection(*sock.getsockname())
            writer.write(b"half a requ")
            await asyncio.sleep(0.05)
            hang_up(free_port())
            await asyncio.sleep(0.05)
            assert read.empty()
            hang_up(port_of(server.sockets[0].fileno()))
            async with asyncio.timeout(30):
                assert await read.get() == b"half a requ"
                assert await reader.read() == b"farewell"
            writer.close()
