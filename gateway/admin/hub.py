"""Where request events arrive: `events.sock` is bound while somebody listens, and only then.

Every listener gets every event. One that is too slow loses events, is told how many, and never
holds up another. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog

log = structlog.get_logger()

Event = dict[str, Any]

MAX_EVENT_BYTES = 65536
MAX_WAITING = 1000  # events for one listener
MAX_AT_ONCE = 64  # events read before the loop's other work gets its turn


class TooManyListeners(Exception):
    """So many listen already that one more would cost those who call."""


class Listener:
    """One listener's events, in order."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._dropped = 0
        self._stirred = asyncio.Event()
        self.is_closed = False

    def put(self, event: Event) -> None:
        """Add an event, or count it as dropped."""
        if len(self._events) == MAX_WAITING:
            self._dropped += 1 + event.get("dropped", 0)
            return
        if self._dropped:
            event = event | {"dropped": event.get("dropped", 0) + self._dropped}
            self._dropped = 0
        self._events.append(event)
        self._stirred.set()

    async def take(self, timeout_s: float) -> list[Event]:
        """What has come, waiting at most so long for it. After `close`, only what is left."""
        if not self._events and not self.is_closed:
            self._stirred.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stirred.wait(), timeout_s)
        events, self._events = list(self._events), deque()
        return events

    def close(self) -> None:
        """No more will come."""
        self.is_closed = True
        self._stirred.set()


class EventHub:
    """Hands what arrives on `events.sock` to all listeners."""

    def __init__(self, path: Path, max_listeners: int = 32) -> None:
        self._path = path
        self._max_listeners = max_listeners
        self._listeners: set[Listener] = set()
        self._sock: socket.socket | None = None
        self._is_closed = False

    @property
    def num_listeners(self) -> int:
        """How many listen now."""
        return len(self._listeners)

    @contextmanager
    def listen(self) -> Iterator[Listener]:
        """Every event from now on, until the block is left. Raises TooManyListeners, OSError."""
        if len(self._listeners) >= self._max_listeners:
            raise TooManyListeners
        listener = Listener()
        if self._is_closed:
            listener.close()
        elif self._sock is None:
            self._bind()
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            if not self._listeners:
                self._unbind()

    def close(self) -> None:
        """Tell every listener that no more will come."""
        self._is_closed = True
        for listener in self._listeners:
            listener.close()
        self._unbind()

    def _bind(self) -> None:
        self._path.unlink(missing_ok=True)  # of a process that was killed
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            sock.bind(str(self._path))  # in a directory of mode 0700
        except OSError:
            sock.close()
            raise
        asyncio.get_running_loop().add_reader(sock, self._read)
        self._sock = sock

    def _unbind(self) -> None:
        if self._sock is not None:
            self._path.unlink(missing_ok=True)
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()
            self._sock = None

    def _read(self) -> None:
        assert self._sock is not None
        for _ in range(MAX_AT_ONCE):
            try:
                data = self._sock.recv(MAX_EVENT_BYTES)
            except BlockingIOError:
                return
            try:
                event = msgspec.json.decode(data, type=Event)
            except msgspec.MsgspecError:
                log.warning("event_unreadable", size=len(data))
                continue
            for listener in self._listeners:
                listener.put(event)
