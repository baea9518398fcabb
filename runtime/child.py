"""One host process from the node's side: start it, wait until it serves, end it.

Parent and child meet in HostSpec, Ready and the control routes; nothing else passes between them.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from msgspec import MsgspecError, json

from runtime.host import HostSpec, Ready


class StartFailed(Exception):
    """The host did not become ready; the message is its own reason."""


class Child:
    """A running host process. Made by `start`, which returns when the host serves."""

    def __init__(self, spec: HostSpec, process: asyncio.subprocess.Process) -> None:
        self.spec = spec
        self._process = process

    @classmethod
    async def start(cls, spec: HostSpec, env: dict[str, str], timeout_s: float) -> Child:
        """Spawn a host and wait for its handshake. Raises StartFailed."""
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "runtime.host"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=env,
            )
        except OSError as fault:
            raise StartFailed(f"no process could be started: {fault.strerror}") from None
        child = cls(spec, process)
        try:
            await child._handshake(timeout_s)
        except BaseException:
            await child.kill()
            raise
        return child

    async def _handshake(self, timeout_s: float) -> None:
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
            raise StartFailed(f"exited with {await self._process.wait()} before it was ready")
        if not answer.ready:
            raise StartFailed(answer.reason)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def exited(self) -> int:
        """Waits for the end; returns the exit code (negative: the signal)."""
        return await self._process.wait()

    async def drain(self, timeout_s: float) -> None:
        """Let running answers end, then the process; kill it when time is up."""
        assert self._process.stdin
        try:
            self._process.stdin.write(b"drain\n")
            await asyncio.wait_for(self._process.wait(), timeout_s)
        except (TimeoutError, OSError):
            await self.kill()
        self.clean_up()

    async def kill(self) -> None:
        """End it now."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
        self.clean_up()

    def clean_up(self) -> None:
        """Let go of what an ended process leaves behind."""
        if self._process.stdin:
            self._process.stdin.close()
        Path(self.spec.socket).unlink(missing_ok=True)
