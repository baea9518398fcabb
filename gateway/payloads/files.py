"""Tapes on their way to files, a line each, in a thread of their own.

A file is of one day (UTC) and one process, readable by the operator alone. A request only puts its
tape into a bounded queue: what the disk can't take in time is dropped and counted, and the log says
so once. Files of older days than are to be kept are removed.
"""

from __future__ import annotations

import datetime
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog

from gateway.payloads.tape import Tape
from runtime.config.observability import PayloadSettings

log = structlog.get_logger()

MAX_QUEUED_BYTES = 16 * 1024 * 1024
EVERY_S = 0.5
CLOSE_S = 5.0
SUFFIX = ".jsonl"

Today = Callable[[], datetime.date]


class Played(NamedTuple):
    """A tape, and what its request's log line says."""

    tape: Tape
    fields: Mapping[str, Any]


def today() -> datetime.date:
    """The day in UTC."""
    return datetime.datetime.now(datetime.UTC).date()


class PayloadFiles:
    """A thread, until `close`. `process` tells this process's files from others'."""

    def __init__(
        self, folder: Path, settings: PayloadSettings, process: str, today: Today = today
    ) -> None:
        self._folder, self._settings = folder, settings
        self._process, self._today = process, today
        self._queue: deque[Played] = deque()
        self._queued_bytes = 0
        self._lock = threading.Lock()  # of the two above
        self._dropped = 0
        self._is_failing = False
        self._cleared: datetime.date | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._main, name="payloads", daemon=True)
        self._thread.start()

    def put(self, played: Played) -> None:
        """Take what one request said. Never blocks on the disk, never raises."""
        size = played.tape.size
        with self._lock:
            if self._queued_bytes + size > MAX_QUEUED_BYTES:
                self._dropped += 1
                return
            self._queued_bytes += size
            self._queue.append(played)

    def close(self) -> None:
        """Write what is queued, and end. Blocks, for CLOSE_S at most."""
        self._closing.set()
        self._thread.join(CLOSE_S)

    def _main(self) -> None:
        while not self._closing.wait(EVERY_S):
            self._drain()
        self._drain()

    def _drain(self) -> None:
        with self._lock:
            batch, dropped = list(self._queue), self._dropped
            self._queue.clear()
            self._queued_bytes = self._dropped = 0
        fault = ""
        if batch:
            try:
                self._write(batch)
            except OSError as error:
                dropped, fault = dropped + len(batch), error.strerror or str(error)
        self._judge(dropped, fault)

    def _write(self, batch: list[Played]) -> None:
        day = self._today()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._clear(day)
        lines = (
            msgspec.json.encode(one.tape.document(one.fields, self._settings.max_bytes)) + b"\n"
            for one in batch
        )
        name = self._folder / f"{day.isoformat()}-{self._process}{SUFFIX}"
        with open(name, "ab", opener=_private) as file:
            file.write(b"".join(lines))

    def _clear(self, day: datetime.date) -> None:
        """Remove what is older than is to be kept, once a day."""
        if day == self._cleared:
            return
        first = (day - datetime.timedelta(days=self._settings.days - 1)).isoformat()
        for path in self._folder.glob(f"????-??-??-*{SUFFIX}"):
            if path.name[: len(first)] < first:
                path.unlink(missing_ok=True)
        self._cleared = day

    def _judge(self, dropped: int, fault: str) -> None:
        if dropped and not self._is_failing:
            log.warning("payloads_dropped", number=dropped, reason=fault or "too many at once")
        self._is_failing = bool(dropped)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
