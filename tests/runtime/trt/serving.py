"""A launcher for the tests, with the fake as its server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from runtime.config.sections import HostSettings
from runtime.settings import environment
from runtime.trt.bind import Bind
from runtime.trt.child import Command
from runtime.trt.launcher import Launcher
from runtime.trt.notify import Notifier
from runtime.trt.plan import GUARD_DIR, Plan
from runtime.trt.view import TrtState, View
from runtime.trt.watch import Patience
from tests.stack import REPO, free_port
from tests.trtllm.control import ask
from tests.waiting import until

QUICK = Patience(start_s=60, every_s=0.1, within_s=10, starved_s=60, drain_s=10)
HASTY = replace(QUICK, within_s=1)  # to whom a second's silence is one
BACKOFF = HostSettings(backoff_first_s=0.1, backoff_max_s=0.2, max_failures=3, retry_failed_s=0.5)


def is_alive(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Launched:
    """One that runs. `folder` holds what the fake is told."""

    def __init__(self, folder: Path, *, guarded: bool = True, patience: Patience = QUICK) -> None:
        self.folder = folder
        self.bind = Bind("127.0.0.1", free_port())
        self._control = str(folder / "c.sock")
        self._manners = folder / "manners.json"
        self.behave()
        self.faults: dict[str, Any] = {}
        self.program = sys.executable
        guards = folder / "guards"
        guards.mkdir(mode=0o700)
        plan = Plan(
            model="@cf/meta/llama",
            name="llama",
            bind=self.bind,
            command=self._command,
            guards=guards if guarded else None,
            warden_env=environment(),
            secrets=("sesame-sesame",),
        )
        self.launcher = Launcher(plan, patience, BACKOFF, Notifier(""))

    def behave(self, **manners: Any) -> None:
        """From now on, and in the lives to come."""
        draft = self._manners.with_suffix(".new")
        draft.write_bytes(msgspec.json.encode(manners))
        draft.replace(self._manners)

    def fail(self, **faults: Any) -> None:
        """Faults of the fake, from now on; a new life has those of `faults`."""
        ask(self._control, faults=faults)

    def told(self) -> dict[str, Any]:
        return ask(self._control)

    @property
    def view(self) -> View:
        return self.launcher.view()

    async def ready(self, starts: int = 1) -> View:
        """Once it is, at its n-th start."""
        await until(lambda: self.view.state is TrtState.READY and self.view.starts >= starts)
        return self.view

    async def ended(self, starts: int = 1) -> View:
        """Once its n-th start has failed."""
        states = (TrtState.WAITING, TrtState.FAILED)
        await until(lambda: self.view.starts > starts or self.view.state in states)
        return self.view

    def _command(self, guards: Path | None) -> Command:
        env = dict(environment()) | {
            "FAKE_TRTLLM_CONTROL": self._control,
            "FAKE_TRTLLM_MANNERS": str(self._manners),
            "FAKE_TRTLLM_FAULTS": msgspec.json.encode(self.faults).decode(),
        }
        if guards:
            env[GUARD_DIR] = str(guards)
        command = [self.program, "-m", "tests.trtllm.launched", "llama"]
        command += ["--host", self.bind.host, "--port", str(self.bind.port)]
        return Command(command=command, env=env, folder=str(REPO), mark=str(self.bind.port))


@asynccontextmanager
async def launched(
    folder: Path,
    *,
    guarded: bool = True,
    patience: Patience = QUICK,
    faults: dict[str, Any] | None = None,
    program: str = sys.executable,
    **manners: Any,
) -> AsyncIterator[Launched]:
    """A launcher that runs; nothing of it is left after the block."""
    found = Launched(folder, guarded=guarded, patience=patience)
    found.behave(**manners)
    found.faults, found.program = faults or {}, program
    running = asyncio.ensure_future(found.launcher.run())
    try:
        yield found
    finally:
        found.launcher.stop.say()
        found.launcher.stop.say()
        await running
