"""The state folder: who owns it.

One node owns a state folder at a time (flock, so a killed owner leaves nothing behind). One that is
being stopped says so in its lock file, and whoever starts meanwhile waits a little for it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from runtime import durable

ROLES = ("node", "gateway")
STOPPING = "stopping"
STOPPING_WAIT_S = 5.0  # an owner's port is free before its hosts are gone
LOOK_S = 0.1
SEVERAL = (
    ". SQLite has one gateway; several share a PostgreSQL database, which `store.url` names, each "
    "with a state folder of its own"
)


class StateInUse(Exception):
    """The state folder, or its runtime directory, can't be used; the message says why."""


class Stopping(StateInUse):
    """It is in use by a process that is being stopped."""


def prepare(state_dir: Path) -> None:
    """Make the folder, private to this user. Raises StateInUse to root, in another's folder."""
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    owner = state_dir.stat().st_uid
    if os.geteuid() == 0 != owner:
        raise StateInUse(
            f"{state_dir} belongs to user {owner}, who could not read what root writes there; "
            "run this as that user, as by sudo -u"
        )


def own(state_dir: Path, role: str) -> IO[str]:
    """Take a role of the folder until the returned file is closed.

    Raises StateInUse; Stopping, which is one, if its owner is being stopped.
    """
    prepare(state_dir)
    path = state_dir / f"{role}.lock"
    file = path.open("a+", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        told = file.read().split()
        file.close()
        raise _in_use(state_dir, role, told) from None
    try:
        with durable.naming(path):
            file.truncate(0)
            os.write(file.fileno(), f"{os.getpid()}\n".encode())  # nothing is left in a buffer
    except OSError:
        file.close()
        raise
    return file


def own_when_left(
    state_dir: Path,
    role: str,
    wait_s: float = STOPPING_WAIT_S,
    sleep: Callable[[float], None] = time.sleep,
) -> IO[str]:
    """As `own`, but an owner that is being stopped is waited for. Raises StateInUse or Stopping."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return own(state_dir, role)
        except Stopping:
            if time.monotonic() > deadline:
                raise
            sleep(LOOK_S)


def say_stopping(state_dir: Path) -> None:
    """Write into the lock files that are this process's that it is being stopped.

    What can't be written, as on a full disk, is left out: it would only have helped.
    """
    for role in ROLES:
        with suppress(OSError):
            path = state_dir / f"{role}.lock"
            if path.read_text(encoding="ascii").split() == [str(os.getpid())]:
                with path.open("a", encoding="ascii") as file:
                    file.write(f"{STOPPING}\n")


def _in_use(state_dir: Path, role: str, told: list[str]) -> StateInUse:
    """What to raise for a lock that is held; `told` is what its file says."""
    owner = told[0] if told else "another process"
    if told[1:] == [STOPPING]:
        return Stopping(
            f"{state_dir} is in use by a Bulkhead {role} (pid {owner}) that is stopping; "
            "try again once it has ended"
        )
    several = SEVERAL if role == "gateway" else ""
    return StateInUse(
        f"{state_dir} is already in use by a running Bulkhead {role} (pid {owner}); "
        f"stop that one first, or choose another folder with --state{several}"
    )
