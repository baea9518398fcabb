"""How long an engine may be silent. As `asyncio.timeout`, for what runs several times a request."""

from __future__ import annotations

import asyncio
from types import TracebackType

from gateway.errors import UpstreamTimeout


class Deadline:
    """What takes longer than so many seconds inside is UpstreamTimeout. Entered once."""

    __slots__ = ("_before", "_is_over", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_over = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._before = task, task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._end)

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, _: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if not self._is_over:
            return
        # who cancelled the task from outside as well is heard, and not us
        is_ours = self._task.uncancel() <= self._before
        if is_ours and kind is asyncio.CancelledError:
            raise UpstreamTimeout(f"the engine was silent for {self._seconds:g} s") from None

    def _end(self) -> None:
        self._is_over = True
        self._task.cancel()
