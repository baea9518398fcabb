"""A comment whenever a stream has been silent for long: else whoever stands between would end it.

A timer looks after that, and no task: few streams are ever silent for so long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress


class KeptAlive:
    """While this is entered, `write` is called after each `every_s` of silence.

    `silent_s` says how long it has been silent; 0 while something is being written. `writing` is
    the call of `write` that runs: nothing else may be written meanwhile.
    """

    __slots__ = ("_every_s", "_loop", "_silent_s", "_timer", "_write", "writing")

    def __init__(
        self, every_s: float, silent_s: Callable[[], float], write: Callable[[], Awaitable[None]]
    ) -> None:
        self._every_s = every_s
        self._silent_s = silent_s
        self._write = write
        self.writing: asyncio.Future[None] | None = None

    async def __aenter__(self) -> KeptAlive:
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._every_s, self._look)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._timer.cancel()
        writing, self.writing = self.writing, None
        if writing is not None:
            writing.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await writing

    def _look(self) -> None:
        left_s = self._every_s - self._silent_s()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look)
            return
        self.writing = asyncio.ensure_future(self._write())
        self.writing.add_done_callback(self._written)

    def _written(self, writing: asyncio.Future[None]) -> None:
        if self.writing is not writing:  # this was left meanwhile
            return
        self.writing = None
        if not writing.cancelled() and writing.exception() is None:
            self._timer = self._loop.call_later(self._every_s, self._look)
