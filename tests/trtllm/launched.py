"""`python -m tests.trtllm.launched`: the fake `trtllm-serve` as a launcher's child, with manners.

A guard lives in it, written by the guard's own modules: it counts each step before its token goes
out. What a test wants of it stands in a file of JSON, which may change while it runs.

    FAKE_TRTLLM_MANNERS   that file: see `Manners`
    BULKHEAD_GUARD_DIR    as the guard has it
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from engines.trtllm.journal import Journal
from engines.trtllm.state import StateFile
from tests.trtllm import app, executor
from tests.trtllm_serve import serve

LOOK_S = 0.02
MANNERS = Path(os.environ["FAKE_TRTLLM_MANNERS"])


class Manners(msgspec.Struct, forbid_unknown_fields=True):
    """What it does beside serving."""

    guard: str = "counts"  # or "flat", "absent", "poisoned"
    exits_s: float | None = None  # after its start, with code 7
    dies_s: float | None = None  # killed by itself
    ignores_term: bool = False
    forks: str = ""  # where the pids of its children are written: one leaves the group, one doesn't
    says: str = ""  # before anything else
    violations: list[dict[str, Any]] = []  # those beyond what was written are written


def manners() -> Manners:
    return msgspec.json.decode(MANNERS.read_bytes() or b"{}", type=Manners)


class Guard:
    """What the connector would do."""

    def __init__(self, folder: Path) -> None:
        self._state = StateFile.create(folder)
        self._journal = Journal(folder)
        self._steps = self._violations = 0

    def step(self) -> None:
        if manners().guard != "flat":
            self._steps += 1
            self._tell()

    def look(self) -> None:
        now = manners()
        if now.guard == "poisoned":
            self._state.poison()
        for violation in now.violations[self._violations :]:
            self._journal.append(violation)
            self._violations += 1
            self._tell()

    def _tell(self) -> None:
        self._state.tell(self._steps, 4 * self._steps, self._violations)


def watched(guard: Guard | None) -> type[executor.Executor]:
    class Watched(executor.Executor):
        _count = 0

        @property
        def num_steps(self) -> int:
            return self._count

        @num_steps.setter
        def num_steps(self, count: int) -> None:
            self._count = count
            if guard and count:
                guard.step()

    return Watched


def live(guard: Guard | None) -> None:
    """In a thread: what it does by itself."""
    began = time.monotonic()
    while True:
        now, lived_s = manners(), time.monotonic() - began
        if now.exits_s is not None and lived_s >= now.exits_s:
            os._exit(7)
        if now.dies_s is not None and lived_s >= now.dies_s:
            os.kill(os.getpid(), signal.SIGKILL)
        if guard:
            guard.look()
        time.sleep(LOOK_S)


def fork(path: str) -> None:
    sleep = [sys.executable, "-c", "import signal, time; signal.signal(15, 1); time.sleep(600)"]
    pids = [subprocess.Popen(sleep, start_new_session=leaves).pid for leaves in (True, False)]
    Path(path).write_text(" ".join(map(str, [os.getpid(), *pids])))


def main() -> None:
    now = manners()
    sys.stdout.write(f"{now.says}\n")
    sys.stdout.flush()
    if now.forks:
        fork(now.forks)
    folder = os.environ.get("BULKHEAD_GUARD_DIR", "")
    guard = Guard(Path(folder)) if folder and now.guard != "absent" else None
    app.Executor = watched(guard)  # type: ignore[attr-defined]
    threading.Thread(target=live, args=(guard,), daemon=True).start()
    if now.ignores_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal = lambda *_: None  # uvicorn would take it again
    asyncio.run(serve(sys.argv[1:]))


if __name__ == "__main__":
    main()
