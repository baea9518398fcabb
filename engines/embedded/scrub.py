"""What tags can't see: bytes that changed under a right tag.

A sealed page is never written again, so its checksum, taken when it was sealed, must hold: it is
verified when the page is first reused, and in the background at a bounded rate. Free pages must be
zero, and so must the null page; canaries, pages past the end of the pool, must keep their pattern.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from engines.embedded.pages import NULL_PAGE, PagePool, State

PAGES_PER_S = 64.0  # background: some 20 microseconds each, so a thousandth of a core


class Bytes(Protocol):
    """Where the pages' bytes are."""

    num_pages: int
    num_canaries: int  # pages of their own, past the last

    def bytes_of(self, page: int) -> NDArray[np.uint8]: ...

    def is_zero(self, page: int) -> bool: ...


@dataclass(slots=True)
class Scrubbed:
    """Counters since the start."""

    pages: int = 0  # looked at, for whatever reason
    mismatches: int = 0  # sealed pages whose bytes had changed
    residues: int = 0  # free pages, or the null page, that weren't zero
    canaries: int = 0  # canaries that were written to


class Scrubber:
    """`on_fault(page, what)` hears of each page that isn't as it must be."""

    def __init__(
        self,
        pool: PagePool,
        memory: Bytes,
        on_fault: Callable[[int, str], None] = lambda page, what: None,
        *,
        pages_per_s: float = PAGES_PER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counted = Scrubbed()
        self.on_fault = on_fault
        self._pool = pool
        self._memory = memory
        self._checksums = np.zeros(pool.num_pages, np.uint64)
        self._is_vetted = np.zeros(pool.num_pages, np.bool_)
        self._pages_per_s = pages_per_s
        self._clock = clock
        self._last_s = clock()
        self._next = NULL_PAGE
        self._patterns = {canary: self._fill(canary) for canary in self._canaries()}

    def seal(self, page: int) -> None:
        """Record what the page holds from now on."""
        self._checksums[page] = self._checksum(page)
        self._is_vetted[page] = False

    def vet(self, page: int) -> bool:
        """Whether a page about to be reused still holds what was sealed; looked at once."""
        if not self._is_vetted[page]:
            self._is_vetted[page] = self._is_sound(page)
        return bool(self._is_vetted[page])

    def tend(self) -> list[int]:
        """Look at as many pages as the rate allows since the last call. Sealed ones at fault."""
        now = self._clock()
        due = int((now - self._last_s) * self._pages_per_s)
        if due == 0:
            return []
        self._last_s = now
        return self.look(min(due, self._pool.num_pages))

    def look(self, num_pages: int) -> list[int]:
        """Look at the next pages in turn, and at the canaries. Sealed ones at fault."""
        faulty = []
        for _ in range(num_pages):
            page, self._next = self._next, (self._next + 1) % self._pool.num_pages
            if not self._is_as_it_must_be(page):
                faulty.append(page)
        for canary in self._canaries():
            self._look_at_canary(canary)
        return faulty

    def _is_as_it_must_be(self, page: int) -> bool:
        state = self._pool.states[page]
        if page == NULL_PAGE or state == State.FREE:
            self._look_for_residue(page)
        elif state in (State.SEALED, State.CACHED):
            return self._is_sound(page)
        return True

    def _is_sound(self, page: int) -> bool:
        self.counted.pages += 1
        if self._checksum(page) == self._checksums[page]:
            return True
        self.counted.mismatches += 1
        self.on_fault(page, "its bytes changed since it was sealed")
        return False

    def _look_for_residue(self, page: int) -> None:
        self.counted.pages += 1
        if not self._memory.is_zero(page):
            self.counted.residues += 1
            self.on_fault(page, "it is free, and its bytes aren't zero")

    def _look_at_canary(self, canary: int) -> None:
        self.counted.pages += 1
        if self._checksum(canary) != self._patterns[canary]:
            self.counted.canaries += 1
            self.on_fault(canary, "a canary past the pool's end was written to")
            self._fill(canary)  # so that one write is told once

    def _canaries(self) -> range:
        return range(self._memory.num_pages, self._memory.num_pages + self._memory.num_canaries)

    def _fill(self, canary: int) -> int:
        """Write the canary's pattern, and return its checksum."""
        bytes_of = self._memory.bytes_of(canary)
        bytes_of[:] = np.random.default_rng(canary).integers(0, 256, len(bytes_of), np.uint8)
        return self._checksum(canary)

    def _checksum(self, page: int) -> int:
        return xxhash.xxh3_64_intdigest(self._memory.bytes_of(page).data)
