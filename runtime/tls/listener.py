"""The one listening socket of a gateway. Its parent binds it, and all its workers inherit it.

A connection waits in the socket's queue until some worker takes it: workers come and go, and none
that leaves takes a queue with it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

PORT_WAIT_S = 2.0  # a worker whose parent was killed takes a moment to go
BACKLOG = 1024


class PortInUse(Exception):
    """The address can't be listened on; the message says why, and what to do."""


def bind(host: str, port: int, option: str = "--port or BULKHEAD_PORT") -> socket.socket:
    """Take the address. Nobody else can listen there, and nobody is heard before `listen`.

    Raises PortInUse.
    """
    deadline = time.monotonic() + PORT_WAIT_S
    while True:
        try:
            return _bound(host, port)
        except OSError as fault:
            if fault.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise PortInUse(_told(host, port, fault, option)) from None
            time.sleep(0.1)


def listen(sock: socket.socket) -> None:
    """Begin to queue connections. Raises PortInUse if another, that was bound too, was quicker."""
    try:
        sock.listen(BACKLOG)
    except OSError as fault:
        host, port, *_ = sock.getsockname()
        raise PortInUse(_told(host, port, fault)) from None


def stop_accepting(sock_fd: int) -> bool:
    """Have this process's server take no more connections from the socket. False: it can't.

    The socket stays open, and so does what was taken from it, handshakes included: it only leaves
    the epoll sets of this process, so that the server never hears of a connection again.
    """
    left = False
    for fd in _epoll_sets():
        with suppress(OSError), select.epoll.fromfd(os.dup(fd)) as one:
            one.unregister(sock_fd)
            left = True
    return left


def port_of(sock_fd: int) -> int:
    """Where a socket listens."""
    with socket.socket(fileno=os.dup(sock_fd)) as sock:
        port: int = sock.getsockname()[1]
        return port


def hang_up(port: int) -> None:
    """Read no more from the connections that came to this port: their end, to the server.

    One to which something is still being sent is left alone.
    """
    for fd in _descriptors("socket:"):
        with suppress(OSError), socket.socket(fileno=os.dup(fd)) as one:
            if _is_taken(one, port) and not _unsent(one):
                one.shutdown(socket.SHUT_RD)


def _is_taken(sock: socket.socket, port: int) -> bool:
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
        return False
    is_listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return not is_listening and bool(sock.getsockname()[1] == port)


def _unsent(sock: socket.socket) -> int:
    """Bytes that the other end hasn't acknowledged."""
    return int.from_bytes(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def _epoll_sets() -> list[int]:
    return _descriptors("anon_inode:[eventpoll]")


def _descriptors(kind: str) -> list[int]:
    """This process's, of a kind."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if os.readlink(entry).startswith(kind):
                found.append(int(entry.name))
    return found


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # its connections inherit it
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def _told(host: str, port: int, fault: OSError, option: str = "--port or BULKHEAD_PORT") -> str:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if isinstance(fault, socket.gaierror):
        return f"{where} can't be listened on ({fault.strerror}); correct --host"
    return (
        f"{where} can't be listened on ({fault.strerror}); "
        f"stop what uses it, or choose another with {option}"
    )
