"""The violations that the guard saw, one JSON object a line, for whoever stands outside.

The file `journal.ndjson` of the guard's folder:

    {"seq":1,"at_us":..,"step":..,"request":..,"client":..|null,"salt":".."|null,
     "salt_id":".."|null,"kind":"..","block":..}

`request` is TensorRT-LLM's own id; `client` the id by which its server knows the request; `salt`
the first 32 hex digits of SHA-256 of the cache salt, where the guard was told it, and `salt_id` the
16 hex digits of TensorRT-LLM's 64-bit id of it: `engines.trtllm.salts.is_of` says whose line it is.
Never a token, a text or a salt.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.trtllm.state import State, read_state

__all__ = ["MAX_BYTES", "NAME", "Journal", "JournalFull", "Reader", "State", "read_state"]

NAME = "journal.ndjson"
MAX_BYTES = 4 << 20  # 20,000 lines: who has that many violations needs no more of them


class JournalFull(OSError):
    """The file system or the bound took no more. The line may be there in part."""


class Journal:
    """Appends. One process has one."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        """A new journal in place of the folder's last. Raises OSError: no folder, no room."""
        new = folder / f"{NAME}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(new, flags, 0o600)
        os.replace(new, folder / NAME)
        self._room = max_bytes
        self._seq = 0

    def append(self, violation: Mapping[str, object]) -> None:
        """Raises JournalFull."""
        self._seq += 1
        object_ = {"seq": self._seq, "at_us": time.time_ns() // 1000, **violation}
        line = json.dumps(object_, separators=(",", ":")).encode() + b"\n"
        if len(line) > self._room:
            raise JournalFull("the journal has reached its bound")
        try:
            written = os.write(self._file, line)
        except OSError as error:
            raise JournalFull(str(error)) from error
        if written != len(line):
            raise JournalFull("no room for the journal's line")
        self._room -= written

    def close(self) -> None:
        os.close(self._file)

    @staticmethod
    def follow(folder: Path) -> Reader:
        """Reads what is there and what will come; the journal need not be there yet."""
        return Reader(folder)


class Reader:
    """Follows a folder's journal, also into the next one if a guard begins anew."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._inode = 0
        self._offset = 0

    def new_lines(self) -> list[dict[str, Any]]:
        """What has come since the last call, oldest first; never waits.

        A line that isn't JSON is one that was cut when the file system was full. It comes as an
        object without a salt: nobody knows whose it was.
        """
        try:
            with self._path.open("rb") as file:
                return self._from(file.fileno())
        except OSError:
            return []

    def _from(self, file: int) -> list[dict[str, Any]]:
        inode = os.fstat(file).st_ino
        if inode != self._inode:
            self._inode, self._offset = inode, 0
        content = os.pread(file, MAX_BYTES, self._offset)
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [_violation(line) for line in whole.splitlines()]


def _violation(line: bytes) -> dict[str, Any]:
    try:
        violation = json.loads(line)
    except ValueError:
        violation = None
    if isinstance(violation, dict):
        return violation
    return {"kind": "unreadable", "client": None, "salt": None, "salt_id": None}
