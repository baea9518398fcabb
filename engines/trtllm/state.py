"""How the guard inside TensorRT-LLM is doing: 64 bytes that one process writes and others read.

The file `state` of the guard's folder: eight little-endian u64s, in the order of `State` with the
magic before it. It is mapped, so that a step costs no call of the system, and so that saying
"poisoned" works when nothing else does any more: its page is there already.

Poisoned means that the guard itself failed, or that it can no longer stop a single request: every
request counts as a violation from then on. Any process of the server may say it; none takes it
back. It ends with the server.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import NamedTuple

from engines.trtllm.shared import SharedWords

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


class StateFile(SharedWords):
    """The mapped file. One process writes its counters; any may poison it."""

    NAME = "state"
    MAGIC = b"BHGUARD1"
    SIZE = 64

    @classmethod
    def create(cls, folder: Path) -> StateFile:
        """A new one in place of the folder's last, which is poisoned: its guard is no more.

        Raises OSError: no folder, no room in it.
        """
        if (former := cls.open(folder)) is not None:
            former.poison()
        return cls.new(folder, {_PID: os.getpid(), _BOOT: secrets.randbits(64)})

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


def read_state(folder: Path) -> State | None:
    """None: no guard has begun there (yet)."""
    try:
        content = (folder / StateFile.NAME).read_bytes()
    except OSError:
        return None
    if len(content) != StateFile.SIZE or content[:8] != StateFile.MAGIC:
        return None
    _, pid, boot, steps, checked, violations, poisoned, at_ns = memoryview(content).cast("Q")
    return State(pid, boot, steps, checked, violations, poisoned != 0, at_ns)
