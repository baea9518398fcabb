"""Timers of which nearly all are stopped before they are due: several for each request.

Those of one length are due in the order in which they were begun, so the loop is told of the first
of them alone. One of its own timers for each would cost several times as much.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


class Timer:
    """Calls `due` after its lane's time, unless it is stopped before. Belongs to one event loop."""

    __slots__ = ("_lane", "at", "due")

    def __init__(self, lane: _Lane, at: float, due: Callable[[], object]) -> None:
        self._lane = lane
        self.at = at
        self.due = due

    def stop(self) -> None:
        """It isn't needed any more, or was called. It lets go of what it was to call."""
        self._lane.waiting.pop(self, None)
        self.due = _nothing  # who has a timer is known by it: else both would wait for a collection


class _Lane:
    """All timers of one length in one event loop, soonest first."""

    __slots__ = ("_is_looking", "_loop", "_seconds", "waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self._is_looking = False
        self.waiting: dict[Timer, None] = {}

    def begin(self, due: Callable[[], object]) -> Timer:
        timer = Timer(self, self._loop.time() + self._seconds, due)
        self.waiting[timer] = None
        if not self._is_looking:
            self._look_at(timer.at)
        return timer

    def _look_at(self, at: float) -> None:
        self._is_looking = True
        self._loop.call_at(at, self._look)

    def _look(self) -> None:
        self._is_looking = False
        now = self._loop.time()
        while self.waiting:
            first = next(iter(self.waiting))
            if first.at > now:
                self._look_at(first.at)
                return
            due = first.due
            first.stop()
            try:
                due()
            except Exception as fault:  # noqa: BLE001 - the others are called all the same
                context = {"message": "a timer's call failed", "exception": fault}
                self._loop.call_exception_handler(context)


class _Lanes(threading.local):
    """Those of the event loop that runs in this thread."""

    loop: asyncio.AbstractEventLoop | None = None
    by_seconds: dict[float, _Lane]


_lanes = _Lanes()


def after(seconds: float, due: Callable[[], object]) -> Timer:
    """Call `due` in so many seconds, in the loop that runs here."""
    loop = asyncio.get_running_loop()
    if _lanes.loop is not loop:
        _lanes.loop, _lanes.by_seconds = loop, {}
    lane = _lanes.by_seconds.get(seconds)
    if lane is None:
        lane = _lanes.by_seconds[seconds] = _Lane(loop, seconds)
    return lane.begin(due)


def _nothing() -> None:
    """What a timer calls that was stopped."""
