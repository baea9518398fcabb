"""While the live view has the terminal, what all our processes write there comes here instead.

Log lines go to a file, the grave ones to the screen as well. Everything else (what a command says
to a person, the demo key among it) goes to the screen and into no file.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from gateway.live.words import clean

MAX_FILE_BYTES = 10_000_000  # then it becomes `.1`, and the `.1` before it is gone
STDOUT, STDERR = 1, 2
GRAVE = ("warning", "error", "critical")
TOLD = ("stopping",)  # whatever their level

Line = dict[str, Any] | str


class LogPipe:
    """Takes the terminal's descriptors from `open` to `close`; `show` is called in a thread."""

    def __init__(self, path: Path, show: Callable[[Line], None]) -> None:
        self._path = path
        self._show = show
        self._taken: dict[int, int] = {}  # ours, and where it led
        self._size = 0
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    def open(self) -> None:
        """Standard error from now on, and standard output if it is the terminal too."""
        self._read_end, write_end = os.pipe()
        os.set_inheritable(write_end, True)
        for fd in (STDOUT, STDERR):
            if fd == STDERR or os.isatty(fd):
                self._taken[fd] = os.dup(fd)
                os.dup2(write_end, fd)
        os.close(write_end)
        self._thread.start()

    def close(self) -> None:
        """Give them back; all that was written is shown before this returns."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for fd, before in self._taken.items():
            os.dup2(before, fd)
            os.close(before)
        self._taken.clear()
        self._thread.join(2)  # a process that we left running may hold the other end

    def _run(self) -> None:
        with open(self._read_end, "rb") as lines:
            for raw in lines:
                self._take(raw)

    def _take(self, raw: bytes) -> None:
        text = raw.decode("utf-8", "replace").rstrip("\n")
        record = parsed(raw)
        if record is None:
            self._show(text)
            return
        self._keep(raw)
        self._show(record)

    def _keep(self, raw: bytes) -> None:
        """Append to the file; one that can't be written is no reason to stop what writes to us."""
        try:
            if self._size + len(raw) > MAX_FILE_BYTES:
                self._path.replace(self._path.with_suffix(".log.1"))
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with open(handle, "ab") as file:
                file.write(raw)
                self._size = file.tell()
        except OSError:
            return


def parsed(raw: bytes) -> dict[str, Any] | None:
    """A log line's fields, or None for a line that isn't one of ours."""
    if not raw.startswith(b"{"):
        return None
    try:
        record = msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.MsgspecError:
        return None
    return record if "event" in record else None


def as_message(record: dict[str, Any]) -> str | None:
    """A log line that a person should see, in words; None for one that needn't be."""
    if record["event"] != "stopping" and record.get("level") not in (
        "warning",
        "error",
        "critical",
    ):
        return None
    hidden = ("event", "level", "timestamp", "logger", "exception")
    told = [f"{name}={value}" for name, value in record.items() if name not in hidden and value]
    return clean(" ".join([str(record["event"]).replace("_", " "), *told]))
