"""Which of a worker's threads interrupts which, where they share a core.

granian reads and writes sockets in a thread of its own, and each request wakes it three times.
Usually a thread that wakes takes the processor from who has it, so the interpreter was interrupted
each time, for one piece of work: a sixth of what a request costs. A batch thread waits until who
has the processor is idle or has had its turn, and then does all that has gathered. An idle core is
taken at once all the same.

A thread inherits this from who starts it, and nobody can be told which threads are granian's. What
an operator has started as batch, idle or real-time (`chrt`, systemd) stays as it is.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def start_patient() -> bool:
    """Threads that this one starts from now on don't interrupt others, nor does this one.

    False, and nothing is changed: it is none that would, or that may be told.
    """
    if sys.platform != "linux":
        return False
    with suppress(OSError, AttributeError):  # a sandbox may forbid it, a libc may not have it
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            return True
    return False


def start_as_usual() -> None:
    """They do again, and this one does, after `start_patient` was true."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
