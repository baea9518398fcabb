"""A server's process from the launcher's side: begun, heard, ended, through its warden."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

from msgspec import MsgspecError, Struct, json

from runtime.node.child import StartFailed, ending
from runtime.trt.warden import end_marked

WARDEN: tuple[str, ...] = ("-m", "runtime.trt.warden")
SPAWN_S = 30.0  # for a process to begin, on a machine that is busy
LAST_S = 2.0  # for what an ended process has left in its pipe


class Command(Struct, frozen=True, kw_only=True):
    """What a warden is told to run, in `folder`.

    `mark` is in the environment of all that descends from it, and in nobody else's. `clear` are
    commands that end what isn't a process of ours, such as a container: before it, and after it.
    """

    command: list[str]
    env: dict[str, str]
    folder: str
    mark: str
    clear: list[list[str]] = []


class _Told(Struct):
    """What a warden says: of the start, and then of the end."""

    pid: int = 0
    failed: str = ""
    code: int | None = None
    left: int = 0


class Ear(asyncio.Protocol):
    """Hears what a server prints, until the last process that could print has ended."""

    def __init__(self, hear: Callable[[bytes], None]) -> None:
        self._hear = hear
        self.over = asyncio.Event()
        self._transport: asyncio.BaseTransport | None = None

    async def open(self) -> int:
        """The other end of its pipe, for a process to print to."""
        reader, writer = os.pipe()
        file = open(reader, "rb", buffering=0)  # noqa: ASYNC230, SIM115 - closed with the transport
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_read_pipe(lambda: self, file)
        return writer

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._hear(data)

    def connection_lost(self, _: Exception | None) -> None:
        """See asyncio."""
        self.over.set()

    def close(self) -> None:
        """Hear no more."""
        if self._transport:
            self._transport.close()


class Child:
    """A server that runs. Made by `spawn`; `clean_up` leaves nothing of it."""

    def __init__(self, process: asyncio.subprocess.Process, ear: Ear, pid: int, mark: str) -> None:
        self.pid = pid  # the server's own
        self._process = process
        self._ear = ear
        self._mark = mark
        self._end = asyncio.ensure_future(self._wait())

    @classmethod
    async def spawn(
        cls, command: Command, env: Mapping[str, str], hear: Callable[[bytes], None]
    ) -> Child:
        """Begin, once nothing is left of an earlier one with that mark.

        `env` is the warden's; `hear` is given all that the server prints. Raises StartFailed.
        """
        if left := await asyncio.to_thread(end_marked, command.mark):
            raise StartFailed(f"{left} processes of an earlier start can't be ended")
        ear = Ear(hear)
        try:
            process = await _spawn(env, await ear.open())
        except OSError as fault:
            ear.close()
            raise StartFailed(f"no process could be started: {fault.strerror}") from None
        assert process.stdin
        process.stdin.write(json.encode(command) + b"\n")
        told = await _line(process, SPAWN_S)
        if told is None or told.failed:
            process.kill()
            await process.wait()
            ear.close()
            raise StartFailed(told.failed if told else "its warden ended before it could start it")
        return cls(process, ear, told.pid, command.mark)

    async def ended(self) -> str:
        """Waits for the end, and says how it was."""
        return await asyncio.shield(self._end)

    def end(self) -> None:
        """Tell the server to let its answers end, and then itself (SIGTERM)."""
        self._tell(b"end\n")

    def kill(self) -> None:
        """End the server and all that descends from it, now."""
        self._tell(b"kill\n")

    async def clean_up(self) -> None:
        """End what is left, and wait until it is gone."""
        self.kill()
        await self.ended()
        if self._process.stdin:
            self._process.stdin.close()

    def _tell(self, line: bytes) -> None:
        assert self._process.stdin
        if not self._process.stdin.is_closing():
            with suppress(OSError):
                self._process.stdin.write(line)

    async def _wait(self) -> str:
        told = await _line(self._process)
        await self._process.wait()
        if told is None or told.code is None:  # its warden was killed: so this is left to us
            how, left = "lost its warden, which was killed", 0
        else:
            how, left = ending(told.code), told.left
        left = left or await asyncio.to_thread(end_marked, self._mark)
        with suppress(TimeoutError):  # its last words say why
            async with asyncio.timeout(LAST_S):
                await self._ear.over.wait()
        self._ear.close()
        return f"{how}; {left} of its processes can't be ended" if left else how


async def _spawn(env: Mapping[str, str], stderr: int) -> asyncio.subprocess.Process:
    """A warden that prints there. Raises OSError."""
    try:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, *WARDEN),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            env=env,
            start_new_session=True,  # a Ctrl-C at the terminal is the launcher's
        )
    finally:
        os.close(stderr)


async def _line(process: asyncio.subprocess.Process, timeout_s: float | None = None) -> (
    _Told | None
):  # fmt: skip
    """The warden's next line; None if there comes none."""
    assert process.stdout
    with suppress(TimeoutError, OSError, ValueError, MsgspecError):
        async with asyncio.timeout(timeout_s):
            return json.decode(await process.stdout.readline(), type=_Told)
    return None
