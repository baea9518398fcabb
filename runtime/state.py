"""The state folder: who owns it, and where its sockets live.

One node owns a state folder at a time (flock, so a killed owner leaves nothing behind). Sockets
live in a short private directory, since a socket's path holds 108 bytes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from runtime import durable

MAX_DIR_BYTES = 84  # of the 107 that a socket's path may have; node.py names the rest


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


def runtime_dir(state_dir: Path) -> Path:
    """A short directory for the sockets of this state folder: 0700 and ours, or refused."""
    digest = hashlib.sha256(str(state_dir).encode()).hexdigest()[:10]
    path = Path(tempfile.gettempdir()) / f"bulkhead-{os.getuid()}-{digest}"
    if len(os.fsencode(path)) > MAX_DIR_BYTES:
        raise StateInUse(f"{path} is too long for sockets; set TMPDIR to a shorter folder")
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise StateInUse(f"{path} is not a private directory of this user; remove it")
    return path


def node_socket(state_dir: Path) -> Path:
    """Where the node of this state folder answers."""
    return runtime_dir(state_dir) / "node.sock"


def events_socket(state_dir: Path) -> Path:
    """Where request events of this state folder are listened for; there while somebody does."""
    return runtime_dir(state_dir) / "events.sock"
