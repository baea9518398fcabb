"""What time it is, as something that is passed in.

Times in the store are whole microseconds since 1970, UTC. Code that needs the time takes a `Clock`,
so that a test can say what time it is.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time; may be asked from any thread."""

    def now_us(self) -> int:
        """Microseconds since 1970-01-01T00:00:00Z."""


class SystemClock:
    """The clock of the machine."""

    def now_us(self) -> int:
        """Microseconds since 1970-01-01T00:00:00Z."""
        return time.time_ns() // 1000


SYSTEM_CLOCK = SystemClock()
