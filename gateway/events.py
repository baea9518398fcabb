"""Request events: what the log says of a request, told to whoever listens on `events.sock`.

The socket is there only while somebody listens (`admin/hub.py`). No request waits or fails for its
sake: what can't be sent at once is kept for a moment, and what is too much is counted and told.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import socket
import time
from collections import deque
from pathlib import Path
from typing import Any, Literal

import msgspec

from gateway.billing import Outcome
from gateway.clock import Clock
from gateway.ledger import CLIENT_CLOSED_REQUEST

Result = Literal["ok", "error", "canceled"]

MAX_KEPT = 1000  # events; the kernel itself holds as few as ten
LOOK_EVERY_S = 0.05  # for somebody who listens: a call to the system for each request would add up


class EventSender:
    """A worker's end of `events.sock`. Belongs to one event loop."""

    def __init__(self, path: Path, clock: Clock, look_every_s: float = LOOK_EVERY_S) -> None:
        self._path = str(path)
        self._clock = clock
        self._sock: socket.socket | None = None
        self._kept: deque[bytes] = deque()
        self._dropped = 0  # since it was last told
        self._look_every_s = look_every_s
        self._look_at = 0.0

    def send(self, fields: dict[str, Any]) -> None:
        """Tell of a request that has ended, if anybody listens. Never blocks, never raises."""
        if self._sock is None and not self._found():
            return
        if len(self._kept) == MAX_KEPT:
            self._dropped += 1
            return
        self._kept.append(self._encode(fields))
        if len(self._kept) == 1:
            self._flush()

    def close(self) -> None:
        """Let go of the socket; what was kept is lost."""
        self._kept.clear()
        self._hang_up()

    def _found(self) -> bool:
        """Whether somebody listens by now."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + self._look_every_s
        return self._connect()

    def _connect(self) -> bool:
        if not os.path.exists(self._path):  # quicker than a failing connect
            return False
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            sock.connect(self._path)
        except OSError:  # left behind by a process that was killed
            sock.close()
            return False
        self._sock = sock
        return True

    def _encode(self, fields: dict[str, Any]) -> bytes:
        now = datetime.datetime.fromtimestamp(self._clock.now_us() / 1e6, datetime.UTC)
        event = {
            "event": "request",
            "timestamp": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "result": result_of(fields),
            **fields,
        }
        if self._dropped:
            event["dropped"], self._dropped = self._dropped, 0
        return msgspec.json.encode(event, enc_hook=str)

    def _flush(self) -> None:
        """Send what is kept; go on when there is room again."""
        may_reconnect = True  # one listener may have followed another
        while self._kept and self._sock is not None:
            try:
                self._sock.send(self._kept[0])
            except BlockingIOError:
                asyncio.get_running_loop().add_writer(self._sock, self._flush)
                return
            except OSError:
                self._hang_up()
                if not may_reconnect or not self._connect():
                    break
                may_reconnect = False
            else:
                self._kept.popleft()
        self._kept.clear()
        if self._sock is not None:
            asyncio.get_running_loop().remove_writer(self._sock)

    def _hang_up(self) -> None:
        if self._sock is not None:
            asyncio.get_running_loop().remove_writer(self._sock)
            self._sock.close()
            self._sock = None


def result_of(fields: dict[str, Any]) -> Result:
    """How a request ended, in one word. A stream that broke has status 200 and an error's code."""
    status = fields.get("status") or 0
    if status == CLIENT_CLOSED_REQUEST or fields.get("outcome") == Outcome.CLIENT_CANCELLED:
        return "canceled"
    return "ok" if 200 <= status < 400 and not fields.get("code") else "error"
