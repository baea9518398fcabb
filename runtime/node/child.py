"""One host process from the node's side: spawn it, wait until it serves, end it.

Parent and child meet in HostSpec, Ready and the control routes; nothing else passes between them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress

from msgspec import MsgspecError, json

from engines.api import Stats
from runtime.host.process import HostSpec, Ready

HOST: tuple[str, ...] = ("-m", "runtime.host")  # what this Python runs as a host process
LAST_S = 2.0  # for what an ended process has left in its pipe


class StartFailed(Exception):
    """The host did not become ready; the message is its own reason."""


class Child:
    """A host process. Made by `spawn`; it serves once `ready` has returned."""

    def __init__(self, spec: HostSpec, process: asyncio.subprocess.Process) -> None:
        self.spec = spec
        self._process = process

    @classmethod
    async def spawn(cls, spec: HostSpec, env: dict[str, str]) -> Child:
        """Begin a process. Raises StartFailed when this machine has no room for one."""
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, *HOST),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=env,
            )
        except OSError as fault:
            raise StartFailed(f"no process could be started: {fault.strerror}") from None
        return cls(spec, process)

    async def ready(self, timeout_s: float) -> Ready:
        """Hand it its spec and wait until it serves. Raises StartFailed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.encode(self.spec) + b"\n")
            line = await asyncio.wait_for(self._process.stdout.readline(), timeout_s)
            answer = json.decode(line, type=Ready) if line else None
        except (TimeoutError, OSError) as fault:
            raise StartFailed(f"not ready after {timeout_s:g} s ({type(fault).__name__})") from None
        except MsgspecError:
            raise StartFailed(f"said {line[:80]!r} instead of whether it is ready") from None
        if answer is None:
            raise StartFailed(f"{ending(await self._process.wait())} before it was ready")
        if not answer.ready:
            raise StartFailed(answer.reason)
        return answer

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def exited(self) -> int:
        """Waits for the end; returns the exit code (negative: the signal)."""
        return await self._process.wait()

    def drain(self) -> None:
        """Tell it to let running answers end, and then itself."""
        assert self._process.stdin
        with suppress(OSError):
            self._process.stdin.write(b"drain\n")

    def kill(self) -> None:
        """End it now; `clean_up` waits for that."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def last_counters(self) -> Stats | None:
        """All that it counted, once it has ended; None if it couldn't say so at its end."""
        assert self._process.stdout is not None
        with suppress(TimeoutError, OSError, ValueError, MsgspecError):
            async with asyncio.timeout(LAST_S):
                if line := await self._process.stdout.readline():
                    return json.decode(line, type=Stats)
        return None

    async def clean_up(self) -> None:
        """End what is left of it, and let go of what it leaves behind."""
        self.kill()
        await self._process.wait()
        if self._process.stdin:
            self._process.stdin.close()
        with suppress(FileNotFoundError):  # it may have removed it itself
            os.unlink(self.spec.socket)


def ending(code: int) -> str:
    """How a process ended, for people."""
    if code == -signal.SIGKILL:
        return "was killed, by hand or because memory ran out"
    return f"exited with {code}"
