"""How long an engine may be silent. As `asyncio.timeout`, for what runs several times a request.

Where a server's guard is heard, a request in flight there may be ended while it waits.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from gateway.errors import Refusal, UpstreamTimeout
from gateway.relay.trust import Flight
from gateway.timers import after


class Deadline:
    """What takes longer than so many seconds inside is UpstreamTimeout. Entered once."""

    __slots__ = ("_before", "_fault", "_flight", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float, flight: Flight | None = None) -> None:
        self._seconds = seconds
        self._flight = flight
        self._fault: Refusal | None = None

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._flight is not None:
            self._flight.check()
            self._flight.wait = self
        self._task, self._before = task, task.cancelling()
        self._timer = after(self._seconds, self._end)

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, _: TracebackType | None
    ) -> None:
        self._timer.stop()
        if self._flight is not None:
            self._flight.wait = None
        if self._fault is not None:
            _judge(self._task, self._before, self._fault, kind)

    def end(self, fault: Refusal) -> None:
        """What goes on inside raises this."""
        if self._fault is None:
            self._fault = fault
            self._task.cancel()

    def _end(self) -> None:
        self.end(_silence(self._seconds))


class Silence:
    """The same for the many waits of one answer, each entered: one timer looks after them all.

    `close` it at the end. Belongs to one task.
    """

    __slots__ = (
        *("_before", "_fault", "_flight", "_loop", "_seconds", "_since", "_task", "_timer"),
    )

    def __init__(self, seconds: float, flight: Flight | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._seconds = seconds
        self._flight = flight
        self._since: float | None = None  # when the wait that runs began
        self._timer: asyncio.TimerHandle | None = None
        self._fault: Refusal | None = None

    def __enter__(self) -> None:
        assert self._task is not None
        if self._flight is not None:
            self._flight.check()
            self._flight.wait = self
        self._since, self._before = self._loop.time(), self._task.cancelling()
        if self._timer is None:
            self._timer = self._loop.call_at(self._since + self._seconds, self._look)

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, _: TracebackType | None
    ) -> None:
        self._since = None
        if self._flight is not None:
            self._flight.wait = None
        if self._fault is not None:
            assert self._task is not None
            _judge(self._task, self._before, self._fault, kind)

    def close(self) -> None:
        """There is no other wait."""
        if self._timer is not None:
            self._timer.cancel()

    def end(self, fault: Refusal) -> None:
        """The wait that runs raises this."""
        assert self._task is not None
        if self._fault is None:
            self._fault = fault
            self._task.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._since is None:
            return  # the next wait has a timer of its own
        if (due := self._since + self._seconds) > self._loop.time():
            self._timer = self._loop.call_at(due, self._look)
            return
        self.end(_silence(self._seconds))


def _silence(seconds: float) -> UpstreamTimeout:
    return UpstreamTimeout(f"the engine was silent for {seconds:g} s")


def _judge(
    task: asyncio.Task[object], before: int, fault: Refusal, kind: type[BaseException] | None
) -> None:
    """Our own cancellation is a fault. Who cancelled the task from outside is heard, not we."""
    is_ours = task.uncancel() <= before
    if is_ours and kind is asyncio.CancelledError:
        raise fault from None
