"""What a worker and the process that started it tell each other: words on a pipe.

granian doesn't tell the app that it is being stopped, so the parent does. And the pipe's end tells
that the parent was killed: its worker must not hold port and store any longer.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from enum import Enum
from multiprocessing.connection import Connection

from runtime import logs
from runtime.deploy.reload import Told

TURNS_UNTIL_SERVING = 10  # of the loop; three pass between the app's start and the server's


class Word(Enum):
    """All there is to say."""

    SERVING = b"serving"  # the worker: I take connections now
    RETIRE = b"retire"  # the parent: another takes them now; finish what you have, and end
    STOP = b"stop"  # the parent: all of us are being stopped; SIGTERM follows


class Parent:
    """A worker's parent, as the worker sees it.

    `listener` is the socket that both share; `told` is what the parent runs.
    """

    def __init__(self, pipe: Connection, listener: int, told: Told | None = None) -> None:
        self._pipe = pipe
        self.listener = listener
        self.told = told

    @asynccontextmanager
    async def heard(self, on: Mapping[Word, Callable[[], None]]) -> AsyncIterator[None]:
        """Act on its words, and end this process once it is gone."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pipe.fileno(), self._hear, on)
        for number in (signal.SIGINT, signal.SIGHUP):
            ignore(number)  # they reach the whole group; the parent decides
        while self._pipe.poll():  # said while this process came up
            self._hear(on)
        try:
            yield
        finally:
            loop.remove_reader(self._pipe.fileno())

    async def say_serving(self) -> None:
        """Tell it, as soon as the server takes connections. Begun at the end of the app's start."""
        for _ in range(TURNS_UNTIL_SERVING):
            await asyncio.sleep(0)
        try:
            self._pipe.send_bytes(Word.SERVING.value)
        except OSError:
            logs.flush()
            os._exit(1)

    def _hear(self, on: Mapping[Word, Callable[[], None]]) -> None:
        try:
            word = Word(self._pipe.recv_bytes())
        except (EOFError, OSError):
            logs.flush()
            os._exit(1)
        on[word]()


def ignore(number: signal.Signals) -> None:
    """Be deaf to a signal from now on."""
    asyncio.get_running_loop().remove_signal_handler(number)
    signal.signal(number, signal.SIG_IGN)
