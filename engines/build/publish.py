"""A folder that is whole or not there: made beside its place under a lock, renamed at the end."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO


@contextmanager
def lock(dest: Path, wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """One process at a time makes `dest`; its parent must be there.

    `wait` is called first where another one is at it. The file is gone afterwards, unless we die.
    """
    path = dest.parent / f".{dest.name}.lock"
    with _locked(path, wait):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _locked(path: Path, wait: Callable[[], None]) -> TextIO:
    """The file that lies there, and that nobody else holds; the kernel frees it if we die."""
    while True:
        handle = open(path, "w")  # noqa: SIM115 - who asked for it closes it
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            wait()
            fcntl.flock(handle, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle.fileno()), path.stat()):
                return handle
        handle.close()  # whoever had it before us has removed it


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
