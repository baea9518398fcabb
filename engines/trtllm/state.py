"""How the guard inside TensorRT-LLM is doing: 64 bytes that one process writes and others read.

The file `state` of the guard's folder: eight little-endian u64s, in the order of `State` with the
magic before it. It lies on a tmpfs and is mapped, so that a step costs no call of the system, and
so that saying "poisoned" works when nothing else does any more: its page is there already.

Poisoned means that the guard itself failed, or that it can no longer stop a single request: every
request counts as a violation from then on. Any process of the server may say it; none takes it
back. It ends with the server.
"""

from __future__ import annotations

import mmap
import os
import secrets
import sys
import time
from pathlib import Path
from typing import NamedTuple

NAME = "state"
MAGIC = int.from_bytes(b"BHGUARD1", "little")
SIZE = 64
_PID, _BOOT, _STEPS, _CHECKED, _VIOLATIONS, _POISONED, _AT_NS = range(1, 8)


class State(NamedTuple):
    """What the guard last said. `at_ns`: when, in ns since 1970; 0 before the first step."""

    pid: int
    boot: int  # random: another one is another server
    steps: int
    checked: int  # blocks
    violations: int
    is_poisoned: bool
    at_ns: int

    def told(self) -> dict[str, str | int | bool]:
        """As the line that the launcher tells the gateway."""
        return {
            "boot": f"{self.boot:016x}",
            "steps": self.steps,
            "checked": self.checked,
            "violations": self.violations,
            "poisoned": self.is_poisoned,
        }


def read_state(folder: Path) -> State | None:
    """None: no guard has begun there (yet)."""
    try:
        content = (folder / NAME).read_bytes()
    except OSError:
        return None
    if len(content) != SIZE:
        return None
    magic, pid, boot, steps, checked, violations, poisoned, at_ns = memoryview(content).cast("Q")
    if magic != MAGIC:
        return None
    return State(pid, boot, steps, checked, violations, poisoned != 0, at_ns)


class StateFile:
    """The mapped file. One process writes its counters; any may poison it."""

    def __init__(self, file: mmap.mmap) -> None:
        # A cast view stores eight bytes at once: nobody reads half of a number.
        self._words = memoryview(file).cast("Q")

    @classmethod
    def create(cls, folder: Path) -> StateFile:
        """A new one in place of the folder's last, which is poisoned: its guard is no more.

        Raises OSError: no folder, no room in it.
        """
        if sys.byteorder != "little":  # pragma: no cover - no such machine has a GPU
            raise OSError("the guard's state is little-endian, and this machine isn't")
        if (former := cls.open(folder)) is not None:
            former.poison()
        new = new_file(folder / NAME, SIZE)
        state = cls(new)
        state._words[_PID] = os.getpid()
        state._words[_BOOT] = secrets.randbits(64)
        state._words[0] = MAGIC
        os.replace(folder / f"{NAME}.new", folder / NAME)
        return state

    @classmethod
    def open(cls, folder: Path) -> StateFile | None:
        """Of a guard that runs: None if none has begun there (yet)."""
        file = opened(folder / NAME, SIZE)
        return None if file is None or file[:8] != b"BHGUARD1" else cls(file)

    @property
    def boot(self) -> int:
        return self._words[_BOOT]

    @property
    def is_poisoned(self) -> bool:
        return self._words[_POISONED] != 0

    def poison(self) -> None:
        self._words[_POISONED] = 1

    def tell(self, steps: int, checked: int, violations: int) -> None:
        """The counters after a step."""
        self._words[_STEPS] = steps
        self._words[_CHECKED] = checked
        self._words[_VIOLATIONS] = violations
        self._words[_AT_NS] = time.time_ns()


def new_file(path: Path, size: int) -> mmap.mmap:
    """`path`.new, of zeros, mapped: whoever renames it has filled it.

    The zeros are written, not left out: a page that the file system can't give would else kill the
    process at its first use. Raises OSError: no room.
    """
    descriptor = os.open(f"{path}.new", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        if os.write(descriptor, bytes(size)) != size:
            raise OSError(f"no room for {path}")
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


def opened(path: Path, size: int) -> mmap.mmap | None:
    """A file of that size, mapped; None where there is none (yet)."""
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
