"""What one life of the guard tells its followers: its counters, and each violation as it comes.

A follower is only woken, and reads at its own pace what is kept here: none can hold up the
launcher, or another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engines.trtllm.journal import Journal
from engines.trtllm.state import State, read_state


class Feed:
    """The guard whose files lie in `folder`. `state` is None once they can't be read."""

    def __init__(self, folder: Path, state: State) -> None:
        self.state: State | None = state
        self.boot = state.boot
        self.violations: list[dict[str, Any]] = []  # as the journal has them; it has a bound
        self.is_leaving = False  # no more requests may come; what runs is watched still
        self.is_over = False
        self._folder = folder
        self._journal = Journal.follow(folder)
        self._wakers: set[Callable[[], None]] = set()

    def look(self) -> list[dict[str, Any]]:
        """Read what is new: the violations that have come. Wakes the followers if need be."""
        last, self.state = self.state, read_state(self._folder)
        new = self._journal.new_lines()
        self.violations += new
        if new or _worth_telling(last) != _worth_telling(self.state):
            self._wake()
        return new

    def leave(self) -> None:
        """Its server is to end once its answers have."""
        self.is_leaving = True
        self._wake()

    def end(self) -> None:
        """Its server ends: what there is left to tell is told, and nothing after it."""
        self.look()
        self.is_over = True
        self._wake()

    @contextmanager
    def following(self) -> Iterator[asyncio.Event]:
        """An event that is set whenever there is something to tell at once."""
        news = asyncio.Event()
        self._wakers.add(news.set)
        try:
            yield news
        finally:
            self._wakers.discard(news.set)

    def position_after(self, boot: str, seq: int) -> int:
        """Where a follower goes on that has heard so much of that boot; of another: nothing."""
        return min(seq, len(self.violations)) if boot == f"{self.boot:016x}" else 0

    def _wake(self) -> None:
        for wake in self._wakers:
            wake()


def _worth_telling(state: State | None) -> object:
    """What is told at once; the other counters can wait for their second."""
    return state and (state.boot, state.violations, state.is_poisoned)
