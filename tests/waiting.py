"""Waiting for what another process does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


def wait_for(condition: Callable[[], object], timeout_s: float = 60) -> None:
    """Returns once it is so. The limit is for what never happens, not a measure."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it didn't happen in time"
        time.sleep(0.02)


async def until(condition: Callable[[], object], timeout_s: float = 60) -> None:
    """The same, while the loop goes on."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it didn't happen in time"
        await asyncio.sleep(0.02)
