"""Where log lines go: a stream of bytes, one write for all lines of a turn of an event loop.

A write gives the interpreter away to whichever thread waits for it, so one for each request costs
more than the line. What is a warning, or worse, is written at once, with all that came before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Protocol


class Stream(Protocol):
    """What is written to."""

    def write(self, data: bytes, /) -> int | None: ...

    def flush(self) -> object: ...


class LineWriter:
    """A structlog logger, of lines in bytes. Any thread may use it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._gathered: deque[bytes] = deque()

    def info(self, line: bytes) -> None:
        """Write it before this thread's event loop goes on waiting; at once where there's none."""
        self._gathered.append(line)
        if len(self._gathered) > 1:
            return  # it is due already
        try:
            asyncio.get_running_loop().call_soon(self.flush)
        except RuntimeError:
            self.flush()

    def warning(self, line: bytes) -> None:
        """Write it now."""
        self._gathered.append(line)
        self.flush()

    debug = info
    error = critical = exception = fatal = warn = msg = warning

    def flush(self) -> None:
        """Write what has gathered. A stream that takes nothing is no reason to fail a request."""
        lines = []
        while self._gathered:
            lines.append(self._gathered.popleft())
        if lines:
            with suppress(OSError):
                self._stream.write(b"\n".join([*lines, b""]))
                self._stream.flush()
