"""Weights as the native kernels read them, in one file that all hosts of a model map.

Arrays come first, then a header that names them, then the header's length and digest: a file that
was cut off, or belongs to another layout, is seen at once and made anew, never served. What lies in
the arrays isn't summed at a start, which reads only what it needs.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from engines.embedded.mapped import mapped

MAGIC = b"bulkhead packed\n"
TRAILER = len(MAGIC) + 8 + hashlib.sha256().digest_size  # bytes: magic, header's length, its digest
ALIGNMENT = 4096  # of an array in the file

Array = NDArray[Any]
Stamp = list[Any]  # of a source: name, size, inode, times of modification and of change in ns


@dataclass(frozen=True, slots=True)
class Header:
    """What a packed file says of itself."""

    layout: str  # of the arrays
    revision: str  # of the checkpoint
    sources: list[Stamp]
    arrays: dict[str, tuple[str, list[int], int]]  # name -> dtype, shape, place in the file
    facts: dict[str, Any]  # what else is to be known of them
    size: int  # bytes before the header


@dataclass(frozen=True, slots=True)
class Packed:
    """A mapped file, or memory of the same form."""

    header: Header
    content: Array  # uint8

    def array(self, name: str) -> Array:
        """Raises KeyError for one that isn't there."""
        dtype, shape, at = self.header.arrays[name]
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self.content[at : at + size].view(dtype).reshape(shape)

    def get(self, name: str) -> Array | None:
        """None for one that isn't there."""
        return self.array(name) if name in self.header.arrays else None


class Writer:
    """Writes arrays one after the other."""

    def __init__(self, file: IO[bytes]) -> None:
        self.facts: dict[str, Any] = {}
        self._file = file
        self._size = 0
        self._arrays: dict[str, tuple[str, list[int], int]] = {}

    def add(self, name: str, array: Array) -> None:
        """Append an array."""
        self._write(bytes(-self._size % ALIGNMENT))
        self._arrays[name] = (array.dtype.str, list(array.shape), self._size)
        self._write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def finish(self, layout: str, revision: str, sources: list[Stamp]) -> None:
        """Append what names them."""
        header = Header(layout, revision, sources, self._arrays, self.facts, self._size)
        told = json.dumps(asdict(header)).encode()
        self._file.write(told + MAGIC + len(told).to_bytes(8, "little") + _digest(told))
        self._file.flush()

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._size += len(data)


Fill = Callable[[Writer], None]


def stamps(files: list[Path]) -> list[Stamp]:
    """What changes when one of these files does."""
    found = [(file.name, file.stat()) for file in files]
    # Archives set a file's modification time, and its inode is soon another's; nobody sets ctime.
    return [[name, at.st_size, at.st_ino, at.st_mtime_ns, at.st_ctime_ns] for name, at in found]


def read(path: Path, layout: str) -> Packed | None:
    """Map a packed file. None if there is none, or it isn't whole, or of another layout."""
    try:
        return _understood(mapped(path), layout)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(path: Path, layout: str, revision: str, sources: list[Stamp], fill: Fill) -> Packed:
    """Make a packed file, atomically, and map it. Raises OSError if it can't be written."""
    _remove_abandoned(path)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(unfinished, "xb") as file:
            with suppress(OSError):  # a file system without locks: then nobody removes it
                fcntl.flock(file, fcntl.LOCK_EX)  # as long as its writer lives
            _write_all(file, layout, revision, sources, fill)
            os.fsync(file.fileno())  # or a crash could leave a whole header over holes
            unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    if (packed := read(path, layout)) is None:
        raise OSError(f"{path} can't be read back")
    return packed


def in_memory(layout: str, revision: str, sources: list[Stamp], fill: Fill) -> Packed:
    """The same without a file."""
    with open(os.memfd_create("weights", os.MFD_CLOEXEC), "w+b") as file:
        _write_all(file, layout, revision, sources, fill)
        return _understood(mapped(Path(f"/proc/self/fd/{file.fileno()}")), layout)


def again(packed: Packed) -> Fill:
    """Writes what a packed file holds, for a file with another header."""

    def fill(writer: Writer) -> None:
        writer.facts = packed.header.facts
        for name in packed.header.arrays:
            writer.add(name, packed.array(name))

    return fill


def _write_all(
    file: IO[bytes], layout: str, revision: str, sources: list[Stamp], fill: Fill
) -> None:
    writer = Writer(file)
    fill(writer)
    writer.finish(layout, revision, sources)


def _understood(content: Array, layout: str) -> Packed:
    """Raises OSError, ValueError, KeyError or TypeError for what isn't whole, or of this layout."""
    trailer = content[-TRAILER:].tobytes()
    if trailer[: len(MAGIC)] != MAGIC:
        raise ValueError("no packed file, or one that was cut off")
    length = int.from_bytes(trailer[len(MAGIC) : len(MAGIC) + 8], "little")
    told = content[-TRAILER - length : -TRAILER].tobytes()
    if _digest(told) != trailer[len(MAGIC) + 8 :]:
        raise ValueError("the header is damaged")
    header = Header(**json.loads(told))
    if header.layout != layout or header.size + length + TRAILER != len(content):
        raise ValueError("of another layout, or another size")
    return Packed(header, content)


def _digest(told: bytes) -> bytes:
    return hashlib.sha256(told).digest()


def _remove_abandoned(path: Path) -> None:
    """What killed writers left half written: files that nobody has locked."""
    for unfinished in path.parent.glob(f".{glob.escape(path.name)}.*"):
        with suppress(OSError), open(unfinished, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unfinished.unlink()
