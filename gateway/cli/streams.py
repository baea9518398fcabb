"""The standard streams of a command: closed, full, or with nobody at the other end.

What can't be written to standard output is a fault, told in a sentence: a script would take half an
answer for the whole. What can't be written to standard error is lost, and stops nothing.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STDIN, STDOUT, STDERR = 0, 1, 2
NAME = "standard output"


class Output(io.FileIO):
    """Standard output; its faults say so."""

    def write(self, data: ReadableBuffer, /) -> int:
        """See FileIO."""
        try:
            return super().write(data)
        except OSError as fault:
            raise OSError(fault.errno, fault.strerror, NAME) from None


class Notices(io.FileIO):
    """Standard error, which has no faults."""

    def write(self, data: ReadableBuffer, /) -> int:
        """See FileIO."""
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def prepare() -> None:
    """Take the three streams. Those that are closed become such as can't be written, or read."""
    for number, mode in ((STDIN, os.O_RDONLY), (STDOUT, os.O_RDONLY), (STDERR, os.O_WRONLY)):
        try:
            os.fstat(number)
        except (
            OSError
        ):  # else the next file that is opened, the store perhaps, would have its place
            os.set_inheritable(os.open(os.devnull, mode), True)
    if sys.stdin is None:
        sys.stdin = open(STDIN, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = _text(Output(STDOUT, "w", closefd=False), sys.stdout, "strict")
    sys.stderr = _text(Notices(STDERR, "w", closefd=False), sys.stderr, "backslashreplace")


def finish() -> None:
    """Write what is left. Raises OSError; after that nothing is left in any case."""
    try:
        sys.stdout.flush()
    finally:
        os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)  # where Python's last flush goes


def _text(raw: io.FileIO, before: TextIO | None, errors: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=(before and before.encoding) or "utf-8",
        errors=(before and before.errors) or errors,
        line_buffering=raw.isatty() or raw.fileno() == STDERR,
    )
