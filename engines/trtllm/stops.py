"""Which requests must be stopped, from the process that checks to those that hand text out.

The file `stop` of the guard's folder, of a fixed size, mapped by every process: little-endian u64s.
A header, a list of client ids that only grows, and a ring of the client ids that the guard met
last. The writer is one process, and no reader waits for it: it appends an id, then counts it. On
a machine that shows the two stores in another order a reader would meet an entry that isn't
written yet, so each entry is an id and its complement, and what isn't both is nobody's.

A full list is no reason to forget a violation: the guard is poisoned then, and all are stopped.
"""

from __future__ import annotations

import mmap
from pathlib import Path

from engines.trtllm.shared import SharedWords

CAPACITY = 4096  # requests of one server's life
MET = 65536  # the last requests that the guard met: far more than can be under way
ALL_ONES = (1 << 64) - 1

_BOOT, _COUNT, _MET_COUNT, _WATCHED = range(1, 5)
_HEADER = 8  # words
_RING = _HEADER + 2 * CAPACITY


class StopsFull(Exception):
    """No place for one more: the guard can't stop single requests any longer."""


class Stops(SharedWords):
    """The mapped file."""

    NAME = "stop"
    MAGIC = b"BHSTOPS1"
    SIZE = 8 * (_RING + MET)

    def __init__(self, file: mmap.mmap) -> None:
        super().__init__(file)
        self._read: set[int] = set()
        self._num_read = 0

    @classmethod
    def create(cls, folder: Path, boot: int) -> Stops:
        """In place of the last, for the state of that boot. Raises OSError: no folder, no room."""
        return cls.new(folder, {_BOOT: boot})

    @property
    def boot(self) -> int:
        """The state's that it belongs to."""
        return self._words[_BOOT]

    def add(self, client: int) -> None:
        """To be stopped. Raises StopsFull."""
        count = self._words[_COUNT]
        if count == CAPACITY:
            raise StopsFull(f"{CAPACITY} requests were stopped")
        place = _HEADER + 2 * count
        self._words[place] = client
        self._words[place + 1] = client ^ ALL_ONES
        self._words[_COUNT] = count + 1

    def meet(self, client: int) -> None:
        """The guard has taken note of this request."""
        count = self._words[_MET_COUNT]
        self._words[_RING + count % MET] = client ^ ALL_ONES
        self._words[_MET_COUNT] = count + 1

    def has_met(self, client: int) -> bool:
        """Whether it is among the last MET that the guard met."""
        known = min(self._words[_MET_COUNT], MET)
        return (client ^ ALL_ONES) in self._words[_RING : _RING + known]

    def must_stop(self, client: int) -> bool:
        """One comparison as long as nothing was added."""
        count = self._words[_COUNT]
        while self._num_read < count and self._has_read_one():
            pass
        return client in self._read or self._num_read < count

    def _has_read_one(self) -> bool:
        place = _HEADER + 2 * self._num_read
        client = self._words[place]
        if self._words[place + 1] != client ^ ALL_ONES:
            return False  # half of it is there: until the rest is, it may be anybody's
        self._read.add(client)
        self._num_read += 1
        return True

    def watch(self) -> None:
        """Said by a hook that has begun to read: from now on the set stops requests."""
        self._words[_WATCHED] = 1

    @property
    def is_watched(self) -> bool:
        return self._words[_WATCHED] != 0
