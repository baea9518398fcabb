"""The state folder: who owns it.

One node owns a state folder at a time (flock, so a killed owner leaves nothing behind).
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from runtime import durable


class StateInUse(Exception):
    """The state folder, or its runtime directory, can't be used; the message says why."""


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
    """Take a role of the folder until the returned file is closed. Raises StateInUse."""
    prepare(state_dir)
    path = state_dir / f"{role}.lock"
    file = path.open("a+", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        owner = file.read().strip() or "another process"
        file.close()
        raise StateInUse(
            f"{state_dir} is already in use by a running Bulkhead {role} (pid {owner}); "
            "stop that one first, or choose another folder with --state"
        ) from None
    try:
        with durable.naming(path):
            file.truncate(0)
            os.write(file.fileno(), f"{os.getpid()}\n".encode())  # nothing is left in a buffer
    except OSError:
        file.close()
        raise
    return file
