"""One connection to an upstream: a request at a time, and what comes back for it.

What nobody asked for, and whatever comes after an answer's end, closes it. A reader that doesn't
read stops it from receiving: no more than a buffer's worth is held beyond `HIGH_WATER_BYTES`.
"""

from __future__ import annotations

import asyncio
import select
import ssl
from typing import cast

from gateway.relay.http1.answer import Answer
from gateway.relay.http1.faults import Broken

BUFFER_BYTES = 16 * 1024  # read at a time: what is made of it takes several times as much
HIGH_WATER_BYTES = 16 * 1024  # held for a reader; then no more is received until it took them


class Connection(asyncio.BufferedProtocol):
    """A protocol of one transport: `begin`, wait by `arrived`, `take`, `finish`.

    `buffer` is filled and read within one turn of the loop, so all of a loop's may share one.
    """

    def __init__(self, buffer: memoryview) -> None:
        self.answer: Answer | None = None  # to the request that is out
        self.fault: Exception | None = None  # why there will be no more of it
        self.idle_since = 0.0
        self.num_answers = 0  # it has given to its end
        self._buffer = buffer
        self._transport: asyncio.Transport
        self._waiter: asyncio.Future[None] | None = None
        self._is_paused = False
        self._is_closed = False
        self._unread = select.poll()

    @property
    def is_usable(self) -> bool:
        """Whether another request may be sent: nothing has come, not even an end.

        The system is asked, too: what lies there unread would be taken for the next answer.
        """
        return not (self._is_closed or self._transport.is_closing() or self._unread.poll(0))

    def begin(self, method: str, request: bytes) -> Answer:
        """Send a request; its answer is filled as it comes."""
        self.answer = answer = Answer(method)
        self._transport.write(request)
        return answer

    async def arrived(self) -> None:
        """Returns once more of the answer has come. Raises what ended the connection."""
        if self.fault is not None:
            raise self.fault
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def take(self) -> bytes:
        """What has come of the body, and room for more."""
        assert self.answer is not None
        body = self.answer.take()
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return body

    def finish(self) -> bool:
        """The exchange is over. Whether another may follow here; else this is closed."""
        answer, self.answer = self.answer, None
        may_follow = answer is not None and answer.may_follow and not answer.held
        if not may_follow or self._is_closed or self._is_sending():
            self.abort()
            return False
        self.num_answers += 1
        return True

    def abort(self) -> None:
        """Close it now; what was to be sent is not."""
        if self.fault is None:
            self.fault = Broken("the connection was closed by us")
        self._is_closed = True
        self._transport.abort()

    def _is_sending(self) -> bool:
        return self._transport.get_write_buffer_size() > 0

    # what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open, with TLS if there is to be."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has another base
        self._unread.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """So many came."""
        answer = self.answer
        if answer is None:  # nobody asked
            self.abort()
            return
        try:
            answer.feed(self._buffer[:nbytes])
        except Broken as fault:
            self.fault = fault
            self.abort()
        else:
            if answer.held > HIGH_WATER_BYTES and not self._is_paused:
                self._is_paused = True
                self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """The upstream sends no more: the connection is over, and the answer may be."""
        self._end(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone, in order or not."""
        self._end(exc)

    def _end(self, why: Exception | None) -> None:
        self._is_closed = True
        if self.fault is None and self.answer is not None and not self.answer.is_done:
            try:
                if why is not None:
                    raise _broken(why)
                self.answer.end()
            except (Broken, ssl.SSLError) as fault:
                self.fault = fault
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self.fault is not None:
            waiter.set_exception(self.fault)
        else:
            waiter.set_result(None)


def _broken(why: Exception) -> Exception:
    if isinstance(why, ssl.SSLError):
        return why
    return Broken(f"the connection was lost: {str(why) or type(why).__name__}")
