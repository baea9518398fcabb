"""What SIGINT and SIGTERM do to a command: it ends, with 128 and the signal's number.

While modules are imported nothing has to be tidied up, and an exception could come out of an import
as any other: then the process ends where it stands. While a command works, KeyboardInterrupt is
raised, so that `finally` and `with` have their say. Who serves has handlers of its own meanwhile.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


class _Received:
    """The signal that a KeyboardInterrupt stands for."""

    number: int = signal.SIGINT


def end_at_once() -> None:
    """From now on a signal ends this process. One that was to be ignored (`nohup`) still is."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    sys.unraisablehook = _unraisable


@contextmanager
def in_order() -> Iterator[None]:
    """Both signals are raised meanwhile, if they were ours to handle."""
    raising = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: _as_interrupt}
    ours = [number for number in raising if signal.getsignal(number) is _end]
    for number in ours:
        signal.signal(number, raising[number])
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, _end)


def interrupted() -> int:
    """The exit code after a KeyboardInterrupt: what a shell says of who died of the signal."""
    return 128 + _Received.number


def _end(number: int, _: FrameType | None) -> None:
    os._exit(128 + number)


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    """SIGTERM is Ctrl-C by another number; asyncio has a way of its own to be interrupted."""
    _Received.number = number
    interrupt = signal.getsignal(signal.SIGINT)
    if not callable(interrupt):
        raise KeyboardInterrupt
    interrupt(signal.SIGINT, frame)


def _unraisable(fault: UnraisableHookArgs) -> None:
    """A signal that came while Python itself was tidying up, where nothing can be raised."""
    if isinstance(fault.exc_value, KeyboardInterrupt):
        os._exit(interrupted())
    sys.__unraisablehook__(fault)
