"""Children of a benchmark: started, awaited by a line they print, weighed, and always ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
END_S = 10.0  # for a child to go by itself before it's killed
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ChildFailed(Exception):
    """A child ended, or stayed silent, before it was ready. Says what it wrote to stderr."""


@dataclass(frozen=True, slots=True)
class Child:
    """A running child. `lines` is what it printed, up to the line that was awaited."""

    pid: int
    lines: tuple[str, ...]
    ask: Callable[[str, str, float], str]  # see `_asker`

    def printed(self, prefix: str) -> str:
        """What follows `prefix` on the line that begins with it."""
        return next(line for line in self.lines if line.startswith(prefix)).removeprefix(prefix)

    def cpu_s(self) -> float:
        """User and system time so far of the child and its living descendants, in seconds."""
        return sum(_cpu_s(pid) for pid in _tree(self.pid))

    def num_processes(self) -> int:
        """The child and its living descendants."""
        return len(_tree(self.pid))

    def memory_bytes(self) -> int:
        """Resident memory of the child and its descendants; what they share counts once."""
        return sum(_memory_bytes(pid) for pid in _tree(self.pid))


@contextmanager
def child(
    argv: Sequence[str],
    ready: str = "",
    *,
    url: str = "",
    wait_s: float = 60.0,
    core: int | None = None,
    env: Mapping[str, str] | None = None,
    say: bytes = b"",
) -> Iterator[Child]:
    """Run `argv` until the block is left. It's entered once a line that begins with `ready` was
    printed, and `url` answers 200; either may be left out. `core`: the one to run on. `say`: what
    it reads first.

    The child's stdin closes when this process goes, however it goes. Raises ChildFailed.
    """
    deadline = time.monotonic() + wait_s
    with tempfile.TemporaryFile() as errors:
        process = _spawn(argv, errors, core, dict(env or {}))
        lines: SimpleQueue[str | None] = SimpleQueue()
        Thread(target=_read_lines, args=(process, lines), daemon=True).start()
        try:
            _say(process, say)
            printed = _until(ready, lines, deadline) if ready else ()
            if printed is None or not _answers(url, process, deadline):
                raise ChildFailed(f"{' '.join(argv)} was not ready: {_tail(errors)}")
            yield Child(process.pid, printed, _asker(process, lines))
        finally:
            _end(process)


def _say(process: subprocess.Popen[bytes], words: bytes) -> None:
    if words and process.stdin is not None:
        with suppress(BrokenPipeError):  # it has ended: whoever waits for it hears why
            process.stdin.write(words)
            process.stdin.flush()


def _asker(
    process: subprocess.Popen[bytes], lines: SimpleQueue[str | None]
) -> Callable[[str, str, float], str]:
    """A function that writes a line and returns what follows `prefix` on the line that answers."""

    def ask(line: str, prefix: str, wait_s: float) -> str:
        _say(process, f"{line}\n".encode())
        printed = _until(prefix, lines, time.monotonic() + wait_s)
        if printed is None:
            raise ChildFailed(f"no answer that begins with {prefix!r} within {wait_s:g} s")
        return printed[-1].removeprefix(prefix)

    return ask


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module under this interpreter."""
    return [sys.executable, "-m", module, *arguments]


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def end_on_sigterm() -> None:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that every child is ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


class Foreign:
    """How much of the machine others used since this was made: above 0.05, distrust the figures."""

    def __init__(self) -> None:
        self._began = (time.monotonic(), _busy_s(), self._ours_s())

    def share(self) -> float:
        """Of all cores, from 0 to 1; time stolen by the hypervisor counts as others'."""
        began, busy_s, ours_s = self._began
        foreign_s = (_busy_s() - busy_s) - (self._ours_s() - ours_s)
        cores = os.cpu_count() or 1
        return max(0.0, foreign_s / (time.monotonic() - began) / cores)

    def _ours_s(self) -> float:
        return sum(_cpu_s(pid) for pid in _tree(os.getpid()))


def _busy_s() -> float:
    user, nice, system, _, _, irq, soft, steal = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
    )
    return (user + nice + system + irq + soft + steal) / TICKS_PER_S


def _spawn(
    argv: Sequence[str], errors: IO[bytes], core: int | None, env: dict[str, str]
) -> subprocess.Popen[bytes]:
    ours = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})  # a child inherits it, and hands it on to its own
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=ROOT,
            env=os.environ | env,
            start_new_session=True,  # Ctrl-C is for this process, which then ends the child
        )
    finally:
        os.sched_setaffinity(0, ours)


def _read_lines(process: subprocess.Popen[bytes], lines: SimpleQueue[str | None]) -> None:
    """Also keeps the pipe from filling once nobody waits for a line any more."""
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.put(line.decode(errors="replace").rstrip("\n"))
    lines.put(None)


def _until(ready: str, lines: SimpleQueue[str | None], deadline: float) -> tuple[str, ...] | None:
    printed: list[str] = []
    while not (printed and printed[-1].startswith(ready)):
        try:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            return None
        if line is None:
            return None
        printed.append(line)
    return tuple(printed)


def _answers(url: str, process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Whether `url` answers 200 before the deadline; no URL asks for nothing."""
    while url:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            if process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.05)
    return True


def _tail(errors: IO[bytes]) -> str:
    errors.seek(0)
    return errors.read()[-2000:].decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, a while to go, then SIGKILL for it and whatever it left in its session."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


def _tree(root: int) -> list[int]:
    """The process and its descendants."""
    parents = {pid: _stat(pid)[1] for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}
    tree = [root]
    for pid in tree:
        tree += [other for other, parent in parents.items() if parent == str(pid)]
    return tree


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; all "0" once it's gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ["0"] * 50
    return text.rpartition(")")[2].split()


def _cpu_s(pid: int) -> float:
    """Its own user and system time, and that of the children it has waited for."""
    return sum(map(int, _stat(pid)[11:15])) / TICKS_PER_S


def _memory_bytes(pid: int) -> int:
    """Its proportional set: a page that several processes share counts once in all."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return (
        next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) * 1024
    )
