"""Where the sockets of a state folder live, and what its processes show of themselves.

A short private directory, since a socket's path holds 108 bytes. Every process and every command
finds the same one, whatever state the disk is in.
"""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path

from runtime.settings import temporary_folder
from runtime.state import StateInUse

MAX_DIR_BYTES = 84  # of the 107 that a socket's path may have; node.py names the rest


def runtime_dir(state_dir: Path) -> Path:
    """A short directory for the sockets of this state folder: 0700 and ours, or refused.

    Raises StateInUse, or OSError if it can't be made.
    """
    digest = hashlib.sha256(str(state_dir).encode()).hexdigest()[:10]
    parent = temporary_folder()
    path = parent / f"bulkhead-{os.getuid()}-{digest}"
    if len(os.fsencode(path)) > MAX_DIR_BYTES:
        raise StateInUse(f"{path} is too long for sockets; set TMPDIR to a shorter folder")
    return private(path)


def private(path: Path) -> Path:
    """A folder in one that others may write to, made if it isn't there: 0700 and ours, or refused.

    Raises StateInUse, or OSError if it can't be made.
    """
    with suppress(FileExistsError):
        _make(path)
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


def _make(path: Path) -> None:
    try:
        path.mkdir(mode=0o700)
    except OSError as fault:
        where = "the folder of TMPDIR must be there, with space, and writable"
        raise OSError(fault.errno, f"{fault.strerror}; {where}", str(path)) from None
