"""Who uses the store, and how all of them let go of it, so that a restore can replace its content.

Whoever writes to the store holds its use lock, shared. A restore locks a second file, the mark,
and waits until it has the use lock for itself: gateways see the mark, let no new request in, settle
what is open and let go; others are soon done. Locks end with their process, so that nobody waits
for one that was killed, at either end.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from gateway.store.errors import StoreError

POLL_S = 0.1
_GLANCE_S = 1.0  # who looks at the mark holds it for microseconds; who restores, for longer
_BACK_S = 2.0  # for those who let go to have it again, and know its content


class StoreInUse(StoreError):
    """The store wasn't let go of in time."""


class Use:
    """A process's share in the use of a store."""

    def __init__(self, database: Path) -> None:
        self.database = database
        self._file: IO[bytes] | None = None

    @property
    def is_held(self) -> bool:
        """Whether this process has its share."""
        return self._file is not None

    def take(self) -> bool:
        """Hold it, if it isn't held; False while a restore has it for itself."""
        if self._file is not None:
            return True
        file = _open(self.database, "use")
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._file = file
        return True

    def let_go(self) -> None:
        """Hold it no longer; a second call does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None


@contextmanager
def using(database: Path) -> Iterator[None]:
    """Use the store for a short while; a restore is waited for."""
    with _open(database, "use") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def is_wanted(database: Path) -> bool:
    """Whether a restore wants the store for itself."""
    with _open(database, "mark") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextmanager
def held(database: Path, patience_s: float) -> Iterator[None]:
    """Have the store for oneself. Raises StoreInUse if that takes longer than `patience_s`.

    At the end, a gateway that had to let go is waited for: it serves from the new content then.
    """
    was_used = _is_used(database)
    with _open(database, "mark") as mark, _open(database, "use") as use:
        if not _lock(mark, _GLANCE_S):
            raise StoreInUse(f"Another restore of {database} is under way.")
        if not _lock(use, patience_s):
            raise StoreInUse(
                f"The store is still written to after {patience_s:g} s: an answer takes longer "
                "than that. Nothing was changed. Try again, or stop the gateway first."
            )
        yield
    deadline = time.monotonic() + _BACK_S
    while was_used and not _is_used(database) and time.monotonic() < deadline:
        time.sleep(POLL_S / 10)


def _is_used(database: Path) -> bool:
    with _open(database, "use") as file:
        return not _lock(file, 0)


def _lock(file: IO[bytes], patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S / 10)
        else:
            return True


def _open(database: Path, which: str) -> IO[bytes]:
    path = database.with_name(f"{database.name}.{which}-lock")
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
