"""What a worker and the process that started it tell each other without a connection.

A worker whose parent was killed must not hold its port and its store. And granian doesn't tell the
app that it is being stopped, so the parent leaves a mark in the runtime directory.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from runtime.state import runtime_dir

POLL_S = 0.25


def mark(state_dir: Path, parent: int) -> Path:
    """Exists while the parent of that pid is stopping."""
    return runtime_dir(state_dir) / f"stopping-{parent}"


async def watch(state_dir: Path, on_stopping: Callable[[], None]) -> None:
    """Calls `on_stopping` once the parent is stopping; ends the process once it is gone."""
    parent = os.getppid()
    path = mark(state_dir, parent)
    told = False
    while os.getppid() == parent:
        if not told and path.exists():
            told = True
            on_stopping()
        await asyncio.sleep(POLL_S)
    os._exit(1)
