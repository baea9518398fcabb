"""Files that are replaced whole or not at all, and stay once that is done."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def replace(path: Path, data: bytes) -> None:
    """Write a private file (0600) in place of what is there; durable once this returns."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
