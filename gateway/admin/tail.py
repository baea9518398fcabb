"""Request events as server-sent events, for as long as the client stays."""

from __future__ import annotations

import time
from contextlib import ExitStack

import anyio
import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.admin.filters import Filter
from gateway.admin.hub import EventHub, Listener, TooManyListeners
from gateway.admin.problems import TooManyTails
from runtime.wire import KEEP_ALIVE

KEEP_ALIVE_S = 5.0
LISTENING = b": listening\n\n"  # from here on nothing is missed

encode = msgspec.json.Encoder().encode


class Tail(Response):
    """The events that pass a filter."""

    def __init__(self, hub: EventHub, wanted: Filter) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self._hub = hub
        self._filter = wanted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI. Raises TooManyTails before anything is sent."""
        with ExitStack() as stack:
            try:
                listener = stack.enter_context(self._hub.listen())
            except TooManyListeners:
                raise TooManyTails("too many listen already; end one of them") from None
            await self._stream(listener, receive, send)

    async def _stream(self, listener: Listener, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        await _write(send, LISTENING)
        async with anyio.create_task_group() as group:
            group.start_soon(_cancel_when_gone, receive, group.cancel_scope)
            await self._pass_on(listener, send)
            group.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b""})

    async def _pass_on(self, listener: Listener, send: Send) -> None:
        last_write = time.monotonic()
        while not listener.is_closed:
            events = await listener.take(KEEP_ALIVE_S)
            data = b"".join(
                b"event: request\ndata: " + encode(event) + b"\n\n"
                for event in events
                if self._filter.wants(event)
            )
            if data or time.monotonic() - last_write >= KEEP_ALIVE_S:
                await _write(send, data or KEEP_ALIVE)
                last_write = time.monotonic()


async def _write(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
