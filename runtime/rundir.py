"""Where the sockets of a state folder live, and what its processes show of themselves.

A short private directory, since a socket's path holds 108 bytes. Every process and every command
finds the same one, whatever state the disk is in. Who serves holds a lock on it: the first clears
away what killed ones left, and the last removes it. systemd-tmpfiles, too, leaves it alone by that.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runtime.settings import temporary_folder
from runtime.state import StateInUse

MAX_DIR_BYTES = 84  # of the 107 that a socket's path may have; node.py names the rest


def runtime_dir(state_dir: Path) -> Path:
    """A short directory for the sockets of this state folder, which may not be there.

    Raises StateInUse if it is, and isn't 0700 and ours.
    """
    digest = hashlib.sha256(str(state_dir).encode()).hexdigest()[:10]
    parent = temporary_folder()
    path = parent / f"bulkhead-{os.getuid()}-{digest}"
    if len(os.fsencode(path)) > MAX_DIR_BYTES:
        raise StateInUse(f"{path} is too long for sockets; set TMPDIR to a shorter folder")
    with suppress(FileNotFoundError):
        _check(path)
    return path


def make(state_dir: Path) -> Path:
    """The same, made if it isn't there. Raises StateInUse, or OSError if it can't be made."""
    return private(runtime_dir(state_dir))


@contextmanager
def held(state_dir: Path) -> Iterator[None]:
    """It is there, and is kept for as long as one process serves. Raises as `make` does.

    To be entered before anything is put into it, and left after all that is gone.
    """
    path = runtime_dir(state_dir)
    fd = _hold(path)
    try:
        yield
    finally:
        with suppress(OSError):  # another holds it, or is about to
            if _locked(fd, fcntl.LOCK_EX) and _is(path, fd):
                _clear(fd)
                path.rmdir()
        os.close(fd)


def private(path: Path) -> Path:
    """A folder in one that others may write to, made if it isn't there: 0700 and ours, or refused.

    Raises StateInUse, or OSError if it can't be made.
    """
    with suppress(FileExistsError):
        _make(path)
    _check(path)
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


def _check(path: Path) -> None:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise StateInUse(f"{path} is not a private directory of this user; remove it")


def _hold(path: Path) -> int:
    while True:
        with suppress(FileExistsError):
            _make(path)
        with suppress(FileNotFoundError):  # the last one has just ended, and removed it
            _check(path)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            if _locked(fd, fcntl.LOCK_EX):
                _clear(fd)
            with suppress(OSError):  # a file system without locks
                fcntl.flock(fd, fcntl.LOCK_SH)
            if _is(path, fd):
                return fd
            os.close(fd)


def _locked(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is(path: Path, fd: int) -> bool:
    """Whether it is still the one at that path."""
    with suppress(FileNotFoundError):
        return os.path.samestat(path.lstat(), os.fstat(fd))
    return False


def _clear(fd: int) -> None:
    """Remove all that is in it: whoever put it there is dead."""
    for entry in os.listdir(fd):
        try:
            os.unlink(entry, dir_fd=fd)
        except OSError:
            shutil.rmtree(entry, ignore_errors=True, dir_fd=fd)
