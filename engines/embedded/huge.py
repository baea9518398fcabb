"""Memory in huge pages, for what every step reads from end to end.

Behind a forward pass nothing of it is in a cache, and a stream through pages of 4 KiB stops at each
of them. Where the system has no huge pages to give, it is memory like any other.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

PAGE = 2 << 20
WORTH = 128 << 10  # bytes: less lies in a few small pages, and leaves most of a huge one empty
KEPT = 3  # blocks: one a step, of two that run or wait to, and of one being laid out


class Block:
    """Whole huge pages, zeros at first. They go with the last array over them."""

    def __init__(self, size: int) -> None:
        self.size = -(-size // PAGE) * PAGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._mapped = mmap.mmap(-1, self.size + PAGE, flags=flags)  # room to begin at a page
        self._start = -_address(self._mapped) % PAGE
        with suppress(AttributeError, OSError):  # a system without huge pages
            self._mapped.madvise(mmap.MADV_HUGEPAGE, self._start, self.size)

    def lend(self) -> ctypes.Array[ctypes.c_uint8]:
        """All of it, as an object that lives as long as any array over it."""
        return (ctypes.c_uint8 * self.size).from_buffer(self._mapped, self._start)


class Lender:
    """Blocks for arrays that are made anew for each step, without asking the system anew."""

    def __init__(self) -> None:
        self._free: list[Block] = []  # without a lock: the last array goes in whatever thread

    def zeros(self, size: int) -> memoryview:
        """So many zero bytes, nobody else's until the last array over them is gone."""
        if size < WORTH:
            return memoryview(bytearray(size))
        block = self._take(size)
        lent = block.lend()
        weakref.finalize(lent, self._give_back, block).atexit = False
        room = np.frombuffer(memoryview(lent), np.uint8)[:size]
        room.fill(0)
        return room.data

    def _take(self, size: int) -> Block:
        with suppress(IndexError):
            while (block := self._free.pop()).size < size:
                pass  # steps have grown: it goes back to the system
            return block
        return Block(size)

    def _give_back(self, block: Block) -> None:
        if len(self._free) < KEPT:
            self._free.append(block)


def zeros(count: int) -> NDArray[np.uint64]:
    """So many numbers, all 0."""
    size = 8 * count
    if size < WORTH:
        return np.zeros(count, np.uint64)
    return np.frombuffer(memoryview(Block(size).lend()), np.uint64, count)


def _address(mapped: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_uint8.from_buffer(mapped))
