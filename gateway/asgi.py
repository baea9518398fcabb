"""One HTTP exchange of the `/v1` routes, straight on ASGI: the hot path pays for nothing else.

A Call reads the request once, notices the client leaving, and writes the answer: JSON, or events
that start late enough for a failure before the first of them to have a status of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import msgspec
from starlette.types import Receive, Scope, Send

from gateway.errors import (
    BadRequest,
    BodyTooLarge,
    BodyTooSlow,
    MethodNotAllowed,
    Refusal,
    UnsupportedEncoding,
)
from gateway.ids import new_id
from gateway.kept_alive import KeptAlive
from gateway.stopper import ClientGone, Limited, Stopper, Watched
from gateway.timers import after
from runtime.wire import KEEP_ALIVE

encode = msgspec.json.Encoder().encode

FAREWELL_S = 5.0  # for a client to take in why its answer ended

Headers = list[tuple[bytes, bytes]]


class Listener(Protocol):
    """Hears what the client is sent."""

    def add(self, data: bytes) -> None:
        """Bytes of the answer's body."""


class Call:
    """A request and its answer. `notes` become the request's log line."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.id = new_id("req")
        self.began = time.perf_counter()
        self.notes: dict[str, Any] = {}
        self.status = 0  # 0 until the answer has started
        self.extra: dict[bytes, bytes] = {}  # headers that any answer is to carry
        self.listener: Listener | None = None
        self._receive = receive
        self._send = send
        self.is_reading = False  # the request's body
        self._is_cut = False  # the body ended before its end
        self._streaming = False
        self._last_write = self.began
        self._kept_alive: KeptAlive | None = None
        self._write_began: float | None = None  # when the present write has
        self._waited_s = 0.0  # for the client to take in what it was sent
        self._stopper = Stopper()
        self._headers: dict[bytes, bytes] = dict(scope["headers"])

    def header(self, name: bytes) -> str:
        """A request header, or ""."""
        return self._headers.get(name, b"").decode("latin-1")

    def repeats(self, name: bytes) -> bool:
        """Whether a header of the request was sent more than once."""
        if len(self._headers) == len(self.scope["headers"]):  # no header was: the usual case
            return False
        return [each for each, _ in self.scope["headers"]].count(name) > 1

    async def body(self, limit: int, within_s: float | None = None) -> bytes:
        """The whole body. Raises BodyTooLarge before more than `limit` bytes are held,
        BodyTooSlow if its end hasn't come `within_s` seconds from now, and UnsupportedEncoding if
        it isn't sent as it is.
        """
        self._check_coding()
        if self.header(b"content-encoding") not in ("", "identity"):
            raise UnsupportedEncoding("send the body uncompressed")
        declared = self.header(b"content-length")
        if declared.isdigit() and int(declared) > limit:
            raise self._too_large(limit)
        async with self._stopper:
            timer = None
            if within_s is not None:
                timer = after(within_s, partial(self._too_slow, within_s))
            self.is_reading = True
            try:
                return await self._read(limit)
            finally:
                self.is_reading = False
                if timer is not None:
                    timer.stop()

    async def _read(self, limit: int) -> bytes:
        parts, size, more = [], 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._is_cut = True
                raise ClientGone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise self._too_large(limit)
            more = message.get("more_body", False)
        return b"".join(parts)

    def watched(self) -> Watched:
        """Cancels what runs inside once the client leaves: ClientGone. The body must be read."""
        return Watched(self._receive, self._stopper)

    def limited(self, seconds: float) -> Limited:
        """Stops the call with TookTooLong if what is inside takes so long.

        Or with ClientGone, if for most of that its client didn't take in what it was sent.
        """
        return Limited(self._stopper, seconds, self._is_stuck)

    def stop(self, why: Refusal | ClientGone) -> None:
        """End the call with `why`: what is watched, or reads the body, now or next."""
        self._stopper.stop(why)

    async def send_json(self, status: int, body: bytes, headers: Headers | None = None) -> None:
        """A whole JSON answer."""
        if self.listener is not None:
            self.listener.add(body)
        length = (b"content-length", b"%d" % len(body))
        await self._start(
            status, [(b"content-type", b"application/json"), length, *(headers or [])]
        )
        await self._send({"type": "http.response.body", "body": body})

    async def send_empty(self, status: int, headers: Headers) -> None:
        """An answer without a body."""
        await self._start(status, headers)
        await self._send({"type": "http.response.body", "body": b""})

    async def stream(self, status: int, content_type: bytes, chunks: AsyncIterator[bytes]) -> None:
        """An answer whose length isn't known."""
        await self._start(status, [(b"content-type", content_type)])
        async for chunk in chunks:
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})

    def event(self, data: bytes) -> Awaitable[None]:
        """Write events, starting the stream with the first."""
        if self._kept_alive is not None and self._kept_alive.writing is not None:
            return self._write_next(data)
        return self._write(data)

    async def end(self, data: bytes = b"") -> None:
        """Write the last events and end the stream."""
        await self._write_next(data, is_last=True)

    def kept_alive(self, every_s: float) -> KeptAlive:
        """Writes a comment whenever the stream has been silent for so long."""
        self._last_write = time.perf_counter()
        self._kept_alive = KeptAlive(every_s, self._silent_s, partial(self._write, KEEP_ALIVE))
        return self._kept_alive

    def _silent_s(self) -> float:
        return 0.0 if self._write_began is not None else time.perf_counter() - self._last_write

    async def _write_next(self, data: bytes, *, is_last: bool = False) -> None:
        """Once a comment that is being written is written. Whoever is cancelled leaves it so."""
        kept_alive = self._kept_alive
        while kept_alive is not None and kept_alive.writing is not None:
            await asyncio.wait((kept_alive.writing,))
        await self._write(data, is_last=is_last)

    async def _write(self, data: bytes, *, is_last: bool = False) -> None:
        began = self._write_began = time.perf_counter()
        if not self._streaming:
            self._streaming = True
            await self._start(
                200, [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
            )
        if self.listener is not None:
            self.listener.add(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})
        self._last_write, self._write_began = time.perf_counter(), None
        self._waited_s += self._last_write - began

    async def fail(self, fault: Refusal) -> None:
        """Tell the client: by status if that's still open, else by an error event and no [DONE].

        A client that reads nothing isn't waited for.
        """
        self.notes["code"] = fault.code
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                if not self.status:
                    await self.send_json(fault.row.status, encode(fault.body()), _headers_of(fault))
                elif self._streaming:
                    await self.end(b"data: " + encode(fault.body()) + b"\n\n")

    async def part(self) -> None:
        """Of a client that has left, or whose body isn't HTTP: servers tell of both alike.

        Who wrote such a body is still there to be told.
        """
        if self._is_cut and not self.status:
            self._let_nothing_follow()
            fault = BadRequest("the body isn't HTTP, or broke off", code="invalid_body")
            with suppress(OSError):
                await self.send_json(fault.row.status, encode(fault.body()))

    def _check_coding(self) -> None:
        """The server below undoes `chunked`, whatever else is named beside it."""
        coding = self.header(b"transfer-encoding")
        if coding and (coding.lower() != "chunked" or self.repeats(b"transfer-encoding")):
            self._let_nothing_follow()
            raise UnsupportedEncoding("the only transfer coding is chunked, once")

    def _is_stuck(self) -> bool:
        """Whether the client had us wait for most of the time since the call began."""
        now = time.perf_counter()
        waited_s = self._waited_s + (0 if self._write_began is None else now - self._write_began)
        return waited_s > (now - self.began) / 2

    def _too_slow(self, within_s: float) -> None:
        self._let_nothing_follow()
        self.stop(
            BodyTooSlow(
                f"the body did not come within {within_s:g} s; send the request again, faster"
            )
        )

    def _too_large(self, limit: int) -> BodyTooLarge:
        self._let_nothing_follow()
        return BodyTooLarge(f"the body is over {limit} bytes, which is the most this gateway reads")

    def _let_nothing_follow(self) -> None:
        """The rest of the body stays unread, so this connection can't be used again."""
        if self.scope["http_version"] != "2":
            self.extra[b"connection"] = b"close"

    async def _start(self, status: int, headers: Headers) -> None:
        self.status = status
        ours = [(b"x-request-id", self.id.encode()), *self.extra.items()]
        await self._send(
            {"type": "http.response.start", "status": status, "headers": headers + ours}
        )


def _headers_of(fault: Refusal) -> Headers:
    headers = []
    if fault.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % fault.retry_after_s))
    if isinstance(fault, MethodNotAllowed):
        headers.append((b"allow", fault.allow.encode()))
    return headers
