"""The memory under the pages: bytes without a name, which a second process can map and fill.

A memfd: no file in /dev/shm, and gone with its last holder. It is left out of core dumps, since KV
tells as much as the text it was computed from (what attention gathers of it for a moment is in a
dump, though). What nobody touched takes no memory.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import weakref

import numpy as np
from numpy.typing import NDArray

# Its size is fixed for good: a peer that could shrink it could kill us with SIGBUS.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class SharedMemory:
    """Zeros at first. `fd` is ours until the object goes; pass it on, never a copy of the bytes."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        weakref.finalize(self, os.close, fd)
        self.size = os.fstat(fd).st_size  # bytes
        mapped = mmap.mmap(fd, self.size)
        mapped.madvise(mmap.MADV_DONTDUMP)
        self.data: NDArray[np.uint8] = np.frombuffer(mapped, np.uint8)  # stays as long as views do

    @classmethod
    def create(cls, size: int) -> SharedMemory:
        """New memory of `size` bytes."""
        fd = os.memfd_create("kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        except OSError:
            os.close(fd)
            raise
        return cls(fd)

    @classmethod
    def attach(cls, fd: int) -> SharedMemory:
        """Another process's memory, by the descriptor it passed: ours from here on.

        Raises ValueError for a descriptor whose size its owner could still change.
        """
        try:
            sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS == SEALS
        except OSError:  # no memfd at all
            sealed = False
        if not sealed:
            raise ValueError("the descriptor is not one of KV memory: its size is not sealed")
        return cls(fd)

    def untouched(self, start: int, stop: int) -> bool:
        """Whether no byte in it was ever touched. To look at the bytes would touch them."""
        try:
            return os.lseek(self.fd, start, os.SEEK_DATA) >= stop
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing at all from there on
                return True
            raise
