"""Ends what a request runs, from outside: its client left, its time is up, the server stops.

Contexts here are classes and not generators: each request has several, and they would cost as much
as all else on its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from starlette.types import Message, Receive

from gateway.errors import Refusal, TookTooLong
from gateway.timers import after


class ClientGone(Exception):
    """The client left before the end of its answer. Nobody is there to be told."""


class Stopper:
    """What runs inside of it is cancelled by `stop`, and ends in what it was stopped with.

    Stopped while nothing runs inside, the next that would is stopped.
    """

    __slots__ = ("_running", "_why")

    def __init__(self) -> None:
        self._running: asyncio.Task[object] | None = None
        self._why: Refusal | ClientGone | None = None

    def stop(self, why: Refusal | ClientGone) -> None:
        """End it with `why`, now or next. The first reason counts."""
        if self._why is not None:
            return
        self._why = why
        if self._running is not None:
            self._running.cancel()

    async def __aenter__(self) -> None:
        if self._why is not None:
            raise self._why
        self._running = asyncio.current_task()

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, _: TracebackType | None
    ) -> None:
        task, why = self._running, self._why
        if why is None:
            self._running = None
            return
        try:
            if fault is None:
                await asyncio.sleep(0)  # the cancellation is due: it must not surface later
        except asyncio.CancelledError as late:
            fault = late
        finally:
            self._running = None
        if isinstance(fault, asyncio.CancelledError):
            assert task is not None
            task.uncancel()
            raise why from None


class Watched:
    """Listens beside what runs inside, which a client that leaves ends with ClientGone.

    What a server's `receive` returns may be a future already; then no task is made for it.
    """

    __slots__ = ("_listening", "_receive", "_stopper")

    def __init__(self, receive: Receive, stopper: Stopper) -> None:
        self._receive = receive
        self._stopper = stopper

    async def __aenter__(self) -> None:
        await self._stopper.__aenter__()
        self._listen()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listening.remove_done_callback(self._heard)
        self._listening.cancel()
        await self._stopper.__aexit__(kind, fault, trace)

    def _listen(self) -> None:
        self._listening = asyncio.ensure_future(self._receive())
        self._listening.add_done_callback(self._heard)

    def _heard(self, listening: asyncio.Future[Message]) -> None:
        if listening.cancelled():  # with all else that runs here
            return
        if listening.result()["type"] == "http.disconnect":
            self._stopper.stop(ClientGone())
        else:
            self._listen()


class Limited:
    """Stops what takes longer than `seconds` inside.

    With ClientGone where `is_clients` says that it was the client who took them: who reads slowly
    enough would else have its answer for nothing.
    """

    __slots__ = ("_is_clients", "_seconds", "_stopper", "_timer")

    def __init__(self, stopper: Stopper, seconds: float, is_clients: Callable[[], bool]) -> None:
        self._stopper = stopper
        self._seconds = seconds
        self._is_clients = is_clients

    def __enter__(self) -> None:
        self._timer = after(self._seconds, self._stop)

    def __exit__(self, *_: object) -> None:
        self._timer.stop()

    def _stop(self) -> None:
        late = f"the request took longer than {self._seconds:g} s, the most that is allowed"
        self._stopper.stop(ClientGone() if self._is_clients() else TookTooLong(late))
