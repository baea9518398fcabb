"""A folder that is whole or not there: made beside its place under a lock, renamed at the end."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def lock(dest: Path, wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """One process at a time makes `dest`; its parent must be there.

    `wait` is called first where another one is at it.
    """
    with open(dest.parent / f".{dest.name}.lock", "w") as handle:  # freed by the kernel if we die
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            wait()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def folder_beside(dest: Path) -> Iterator[Path]:
    """An empty folder on the same disk, gone afterwards, as are killed ones'. Hold `lock`."""
    prefix = f".{dest.name}.partial-"
    for left_by_a_killed_process in dest.parent.glob(f"{prefix}*"):
        shutil.rmtree(left_by_a_killed_process, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=dest.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(folder: Path, dest: Path) -> None:
    """Put `folder` in the place of `dest`, durably; open mappings of an older one stay valid."""
    folder.chmod(0o755)  # mkdtemp makes it private, and safetensors its file
    for path in folder.iterdir():
        path.chmod(0o644)
        _fsync(path)
    _fsync(folder)
    replaced = folder.with_name(f"{folder.name}-replaced")
    if dest.exists():
        os.rename(dest, replaced)  # whole, or gone: never half of it, which a kill would leave here
    os.rename(folder, dest)
    _fsync(dest.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def sha256(path: Path) -> str:
    """Of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
