"""An engine's answer whose first bytes are in: until then another place could have been asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from gateway.relay.deadline import Deadline, Silence
from gateway.relay.place import Place
from gateway.relay.transport import Broken, Reply
from gateway.relay.trust import Flight

# So much is read, written and in copies at a time; what a server sends faster waits with it.
PIECE_BYTES = 16 * 1024


class Answer:
    """Its bytes as they come. `place` is where they come from; a `flight` may be ended there."""

    def __init__(
        self,
        place: Place,
        first: bytes,
        reply: Reply,
        idle_s: float,
        flight: Flight | None = None,
    ) -> None:
        self.place = place
        self._first = first
        self._reply = reply  # which has the rest
        self._idle_s = idle_s
        self.flight = flight

    async def chunks(self) -> AsyncGenerator[bytes]:
        """All bytes. Raises Broken, UpstreamTimeout for too long a silence, IntegrityAbort."""
        chunk: bytes | None = self._first
        clock, silence = asyncio.get_running_loop().time, Silence(self._idle_s, self.flight)
        try:
            while chunk is not None:
                self.place.heard_at = clock()
                if len(chunk) <= PIECE_BYTES:
                    yield chunk
                else:
                    for at in range(0, len(chunk), PIECE_BYTES):
                        yield chunk[at : at + PIECE_BYTES]
                        if self.flight is not None:
                            self.flight.check()
                chunk = None  # nothing is held while the next is waited for
                with silence:
                    chunk = await self._reply.chunk()
        finally:
            silence.close()

    async def read(self, limit: int, within_s: float) -> bytes:
        """The whole body. Raises Broken, also when it is over `limit` bytes; see `chunks`."""
        if self.flight is None and self._reply.is_taken:  # it came with its head, as short ones do
            self.place.heard_at = asyncio.get_running_loop().time()
            return self._first
        parts, size = [self._first], len(self._first)
        async with Deadline(within_s, self.flight):
            while (chunk := await self._reply.chunk()) is not None:
                parts.append(chunk)
                size += len(chunk)
                if size > limit:
                    raise Broken(f"more than {limit} bytes")
        self.place.heard_at = asyncio.get_running_loop().time()
        return b"".join(parts)
