"""How a worker ends: all are being stopped, or another has taken over. Clients notice neither."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import structlog
from starlette.types import Message, Scope, Send

from gateway.processes.parent import Parent, Word, ignore
from gateway.processes.threads import start_as_usual, start_patient
from runtime import logs
from runtime.config.sections import FileSettings
from runtime.tls.listener import hang_up, port_of, stop_accepting

log = structlog.get_logger()

FAREWELL_S = 1.5  # what is left of a drain to tell clients that their answer won't end
# From the last connection taken to granian's own end, which closes idle connections and drops
# handshakes. A new connection has sent its request by then; most clients keep idle ones for less.
SETTLE_S = 10.0
ONCE_S = 1.0  # granian hears a first signal in that time; its third would block the loop
UNSENT_S = 2.0  # for a request to be sent whole once all are being stopped
LOOK_EVERY_S = 0.5


class Answers(Protocol):
    """The requests that a worker answers."""

    @property
    def is_idle(self) -> bool: ...

    def stop(self) -> None: ...

    def stop_unsent(self, after_s: float) -> None: ...


class Worker:
    """A worker process, from the end of its start on."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent
        self._answers: Answers | None = None
        self._settings: Callable[[], FileSettings] = FileSettings
        self._ending: asyncio.TimerHandle | None = None
        self._serves = False
        self._is_patient = False
        self.is_retiring = False

    @asynccontextmanager
    async def living(
        self, answers: Answers, settings: Callable[[], FileSettings]
    ) -> AsyncIterator[None]:
        """Entered last, when all else has started. `settings` are asked for at the end."""
        self._answers, self._settings = answers, settings
        on = {Word.STOP: self._stop, Word.RETIRE: self._retire}
        async with self._parent.heard(on):
            saying = asyncio.ensure_future(self._say_serving())
            self._is_patient = start_patient()  # what the server starts before it serves
            yield
            saying.cancel()

    def last(self, scope: Scope, send: Send) -> Send:
        """For an answer of a worker that retires: its client shall connect anew for the next."""
        if scope["type"] != "http" or scope["http_version"] == "2":  # which granian says GOAWAY to
            return send

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (b"connection", b"close")]
                message = {**message, "headers": headers}
            await send(message)

        return closing

    async def _say_serving(self) -> None:
        await self._parent.say_serving()
        if self._is_patient:
            start_as_usual()
        self._serves = True

    def _stop(self) -> None:
        """Soon, answers that still run would be cut off. End them before."""
        log.info("gateway_stopping")
        if self._ending:
            self._ending.cancel()
        loop = asyncio.get_running_loop()
        loop.call_later(ONCE_S, ignore, signal.SIGTERM)
        loop.call_later(max(0.0, self._settings().server.drain_s - FAREWELL_S), self._end_answers)
        port = port_of(self._parent.listener)  # which the server closes at once
        loop.call_later(UNSENT_S, self._end_unsent, port)

    def _retire(self) -> None:
        """Take nothing new; answers may run for as long as any request may."""
        self.is_retiring = True
        is_deaf = stop_accepting(self._parent.listener)
        log.info("gateway_retiring", settles=is_deaf)
        if not is_deaf and not self._serves:
            logs.flush()
            os._exit(0)  # another came before it: it has taken nothing, and its files are gone
        loop = asyncio.get_running_loop()
        self._ending = loop.call_later(SETTLE_S if is_deaf else 0, self._end)
        loop.call_later(self._settings().limits.wall_s, self._end_answers)

    def _end_answers(self) -> None:
        if self._answers is not None:
            self._answers.stop()

    def _end_unsent(self, port: int) -> None:
        """Who has sent half a request, or half its head, must not hold the stop."""
        if self._answers is not None:
            self._answers.stop_unsent(UNSENT_S)
            if self._answers.is_idle:
                hang_up(port)
        asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._end_unsent, port)

    def _end(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        asyncio.get_running_loop().call_later(ONCE_S, ignore, signal.SIGTERM)
