"""What a node has told, by version: who asks is answered when it changes, and by asking says what
it has taken in.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

ACKNOWLEDGE_S = 3.0  # for gateways to hear of what they must know before we go on
LATELY_S = 5.0  # a gateway that asked within this time, and didn't leave, is still following


@dataclass(slots=True)
class Follower:
    """A gateway that asks again and again."""

    acknowledged: int
    seen_at: float
    is_asking: bool = True


class Board:
    """The current version, and what each gateway has acknowledged of it."""

    def __init__(self) -> None:
        self.version = time.time_ns()  # never one that an earlier node has told
        self._changed = asyncio.Event()  # replaced at each change
        self._heard = asyncio.Event()  # the same for acknowledgements
        self._followers: dict[str, Follower] = {}
        self._is_closed = False

    def change(self) -> None:
        """Something is new."""
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        """Keep nobody waiting any more."""
        self._is_closed = True
        self.change()

    async def newer_than(self, version: int) -> None:
        """Returns once there is another version than this one."""
        while self.version == version and not self._is_closed:
            await self._changed.wait()

    def begin(self, gateway: str, version: int) -> None:
        """A gateway asks, and so has taken in `version`."""
        self._followers[gateway] = Follower(version, time.monotonic())
        self._heard.set()
        self._heard = asyncio.Event()

    def end(self, gateway: str, *, is_gone: bool) -> None:
        """It was answered, or it left before."""
        if is_gone:
            self._followers.pop(gateway, None)
            self._heard.set()
            self._heard = asyncio.Event()
        elif follower := self._followers.get(gateway):
            follower.seen_at, follower.is_asking = time.monotonic(), False

    async def acknowledged(self, timeout_s: float) -> None:
        """Returns once every gateway that follows has taken in what is told now, or after so long.

        A version of another node counts as none of ours.
        """
        version = self.version
        end = time.monotonic() + timeout_s
        while (left := end - time.monotonic()) > 0 and self._behind(version):
            try:
                async with asyncio.timeout(left):
                    await self._heard.wait()
            except TimeoutError:
                return

    def _behind(self, version: int) -> bool:
        oldest = time.monotonic() - LATELY_S
        self._followers = {
            name: one
            for name, one in self._followers.items()
            if one.is_asking or one.seen_at >= oldest
        }
        return any(one.acknowledged < version for one in self._followers.values())
