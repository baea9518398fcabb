"""Which processes of this store live: each holds a lock on a file of its own, named by its boot id.

A flock goes with its process, so kill -9 leaves nothing that could lie. The file appears under its
name when it is locked already: whoever finds one unlocked knows that its process is dead.
"""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gateway.store.errors import StoreUnavailable

LOOK_EVERY_S = 1.0


class Boots:
    """The boots of one state folder."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "boots"

    @contextmanager
    def living(self, boot_id: str) -> Iterator[None]:
        """Be known to live, until this is left or the process ends."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self._folder / f".{boot_id}"
        with draft.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            draft.rename(self._folder / boot_id)
            yield

    def is_alive(self, boot_id: str) -> bool:
        """Whether that process lives. One that doesn't never will again."""
        try:
            with (self._folder / boot_id).open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True

    def has_died(self, boot_id: str) -> bool:
        """Whether it was a process of this folder, and has ended."""
        return (self._folder / boot_id).exists() and not self.is_alive(boot_id)

    def dead(self) -> list[str]:
        """Boots that have ended, and whose files are still there."""
        names = [path.name for path in self._folder.glob("[!.]*")]
        return [name for name in names if not self.is_alive(name)]

    def forget(self, boot_ids: list[str]) -> None:
        """Remove the files of boots that have ended."""
        for boot_id in boot_ids:
            (self._folder / boot_id).unlink(missing_ok=True)

    async def watch(self, reap: Callable[[], Awaitable[None]]) -> None:
        """Calls `reap` soon after another process ended without a farewell, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            with suppress(StoreUnavailable, OSError):  # the next turn tries again
                if dead := self.dead():
                    await reap()
                    self.forget(dead)
