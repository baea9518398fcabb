"""Which of a worker's threads interrupts which, where they share a core.

granian reads and writes sockets in a thread of its own, and each request wakes it three times.
Usually a thread that wakes takes the processor from who has it, so the interpreter was interrupted
each time, for one piece of work: a sixth of what a request costs. A batch thread waits until who
has the processor is idle or has had its turn, and then does all that has gathered. An idle core is
taken at once all the same.

A thread inherits this from who starts it, and nobody can be told which threads are granian's.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def start_patient() -> None:
    """Threads that this one starts from now on don't interrupt others, nor does this one."""
    if sys.platform == "linux":
        _follow(os.SCHED_BATCH)


def start_as_usual() -> None:
    """They do again, and this one does."""
    if sys.platform == "linux":
        _follow(os.SCHED_OTHER)


def _follow(policy: int) -> None:
    if sys.platform == "linux":
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, policy, os.sched_param(0))
