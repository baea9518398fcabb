"""Files that are replaced whole or not at all, and stay once that is done."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def replace(path: Path, data: bytes) -> None:
    """Write a private file (0600) in place of what is there; durable once this returns.

    Raises OSError, which names the file.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with naming(path):
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        sync(path.parent)


def sync(folder: Path) -> None:
    """Make the names in a folder durable."""
    with naming(folder):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """A fault in here names a file: this one if it names none, as when a write finds no space.

    Where a draft can't take this one's place, this one is named: the draft is gone by then.
    """
    try:
        yield
    except OSError as fault:
        if fault.errno is not None and (fault.filename is None or fault.filename2 is not None):
            fault.filename, fault.filename2 = str(path), None
        raise
