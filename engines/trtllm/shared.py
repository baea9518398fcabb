"""A file of the guard's folder that one process writes and others read: mapped, in 64-bit words.

It lies on a tmpfs and has its size from the beginning. The first word says what it is, and is
written last: whoever opens one finds all of it, or nothing.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, TypeVar

Kind = TypeVar("Kind", bound="SharedWords")  # TensorRT-LLM's Python may be too old for `Self`


class SharedWords:
    """The mapped file. A kind of it says what it is called, and how many bytes it has."""

    NAME: ClassVar[str]
    MAGIC: ClassVar[bytes]  # eight of them
    SIZE: ClassVar[int]

    def __init__(self, file: mmap.mmap) -> None:
        # A cast view stores eight bytes at once: nobody reads half of a number.
        self._words = memoryview(file).cast("Q")

    @classmethod
    def new(cls: type[Kind], folder: Path, words: Mapping[int, int]) -> Kind:
        """In place of the folder's last, with these words by index, and zeros.

        Raises OSError: no folder, no room in it.
        """
        if sys.byteorder != "little":  # pragma: no cover - no such machine has a GPU
            raise OSError("the guard's files are little-endian, and this machine isn't")
        made = cls(_zeros(folder / f"{cls.NAME}.new", cls.SIZE))
        for index, word in words.items():
            made._words[index] = word
        made._words[0] = int.from_bytes(cls.MAGIC, "little")
        os.replace(folder / f"{cls.NAME}.new", folder / cls.NAME)
        return made

    @classmethod
    def open(cls: type[Kind], folder: Path) -> Kind | None:
        """Of a guard that runs: None if none has begun there (yet)."""
        file = _opened(folder / cls.NAME, cls.SIZE)
        return None if file is None or file[:8] != cls.MAGIC else cls(file)


def _zeros(path: Path, size: int) -> mmap.mmap:
    """They are written, not left out: a page that the file system can't give would else kill the
    process at its first use. Raises OSError: no room."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        if os.write(descriptor, bytes(size)) != size:
            raise OSError(f"no room for {path}")
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


def _opened(path: Path, size: int) -> mmap.mmap | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return mmap.mmap(descriptor, size)
    except (OSError, ValueError):  # of another size: ValueError
        return None
    finally:
        os.close(descriptor)
