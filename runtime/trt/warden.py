"""The process between the launcher and `trtllm-serve`: nothing of a server outlives its launcher.

A server forks workers, which may leave its process group, and reads nothing from us. So it gets a
parent that does: this one is told what to run as one JSON line on stdin, says on stdout what
becomes of it, and when stdin ends (the launcher was killed, too) it ends all that descends from it.
What the server prints goes to our stderr. Standard library alone: it lives as long as the server.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

MARK = "BULKHEAD_LAUNCH"  # of the environment of all that descends from one server
SUBREAPER, DEATH_SIGNAL = 36, 1  # of prctl(2)
GONE_S = 10.0  # for processes that were killed to be gone: one in a driver's call takes a while
CLEAR_S = 30.0  # for a command that removes a container
LOOK_S = 0.02


def main() -> None:
    """`python -m runtime.trt.warden`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they reach the whole group; the launcher decides
    wake = _wake_on_children()
    adopt_orphans()
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as told:
        line = told.readline()  # and nothing of what comes after it
    if not line.endswith(b"\n"):  # the launcher was killed before it had said all
        sys.exit(1)
    spec = json.loads(line)
    env = spec["env"] | {MARK: spec["mark"]}
    _clear(spec["clear"], env)
    try:
        server = _start(spec["command"], env, spec["folder"])
    except OSError as fault:
        _say({"failed": _not_run(spec["command"][0], fault)})
        sys.exit(1)
    _say({"pid": server.pid})
    try:
        code = _until_it_ends(server, wake)
    finally:
        left = end_all(server.pid)
        _clear(spec["clear"], env)
    _say({"code": code, "left": left})


def _not_run(program: str, fault: OSError) -> str:
    told = f"{program} can't be run: {fault.strerror}"
    if isinstance(fault, FileNotFoundError) and Path(program).name.startswith("trtllm"):
        told += "; is TensorRT-LLM in the environment whose Python `python` names?"
    return told


def adopt_orphans() -> None:
    """Become the parent of what descends from this process and loses its own."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def end_all(group: int) -> int:
    """Kill a process group, and whatever else descends from this process: how many are left.

    One is only while a driver's call holds it.
    """
    deadline = time.monotonic() + GONE_S
    while time.monotonic() < deadline:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
        for pid in children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        if not children():
            return 0
        time.sleep(LOOK_S)
    return len(children())


def end_marked(mark: str) -> int:
    """Kill what has this mark, whoever its parent is by now, until nothing is left: how many are.

    For what a warden left that was killed itself.
    """
    deadline = time.monotonic() + GONE_S
    while (left := marked(mark)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_S)
    return len(left)


def marked(mark: str) -> list[int]:
    """The processes of this user that have this mark."""
    sought, found = f"{MARK}={mark}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if sought in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def children() -> list[int]:
    """The children of this process: those that it has adopted, too."""
    found: list[int] = []
    for task in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def _start(command: Sequence[str], env: Mapping[str, str], folder: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - what the configuration names
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        stderr=sys.stderr.fileno(),
        env=env,
        cwd=folder,
        start_new_session=True,
        preexec_fn=_as_a_server,  # there is no thread here that could hold a lock
    )


def _as_a_server() -> None:
    """In the server, before it is one: signals as anywhere, and it dies if the warden is killed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _wake_on_children() -> int:
    """A pipe that can be read from once a child has ended."""
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


def _until_it_ends(server: subprocess.Popen[bytes], wake: int) -> int:
    """Do as the launcher says until the server ends, or the launcher does: the exit code."""
    stdin = sys.stdin.fileno()
    while (code := _reap().get(server.pid)) is None:
        readable, _, _ = select.select((stdin, wake), (), ())
        if wake in readable:
            os.read(wake, 4096)
        if stdin in readable:
            told = os.read(stdin, 4096)
            if b"kill\n" in told or not told:
                code = -signal.SIGKILL
                break
            if b"end\n" in told:
                os.kill(server.pid, signal.SIGTERM)  # not its workers: answers still run there
    server.returncode = code
    return code


def _reap() -> dict[int, int]:
    """Take note of the children that have ended: their exit codes, negative ones are signals."""
    ended = {}
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    return ended


def _clear(commands: Sequence[Sequence[str]], env: Mapping[str, str]) -> None:
    for command in commands:
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(  # noqa: S603 - as above
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=env,
                timeout=CLEAR_S,
                check=False,
            )


def _say(line: dict[str, Any]) -> None:
    with suppress(OSError):  # the launcher is gone
        os.write(sys.stdout.fileno(), json.dumps(line).encode() + b"\n")


if __name__ == "__main__":
    main()
