"""`bulkhead dev` deploys its config file, and `.dev.vars`, whenever they change.

They are read again and again rather than watched: editors replace files, and a folder that isn't on
this machine's disk doesn't tell. A file counts once it has stayed the same for one look, so that
none is taken half-written.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import click

from gateway.cli.deploy import ON_SAVE, differences, outcome
from gateway.cli.options import EXIT_CODES, Told
from gateway.clock import SYSTEM_CLOCK
from gateway.money.refused import refuse_past_prices
from runtime import settings as config
from runtime.config.dev_vars import FILE
from runtime.config.place import project_folder
from runtime.deploy.rollout import by, carry_out
from runtime.settings import Settings

LOOK_S = 0.3


class Files:
    """Some files' contents. What isn't there is a content, too."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._known = self._seen = self._look()

    def have_changed(self) -> bool:
        """Once for each content that differs from the one before, and has been seen twice."""
        before, self._seen = self._seen, self._look()
        if self._seen != before or self._seen == self._known:
            return False
        self._known = self._seen
        return True

    def _look(self) -> tuple[bytes, ...]:
        return tuple(_digest(path) for path in self._paths)


def _digest(path: Path) -> bytes:
    with suppress(OSError):
        return hashlib.sha256(path.read_bytes()).digest()
    return b""


def to_stderr(text: str) -> None:
    """Where a person reads; stdout is for the shell that reads the address and the key."""
    click.echo(text, err=True)


def watched(settings: Settings) -> tuple[Path, ...]:
    """The files that say what `dev` runs."""
    if not settings.config_path:
        return ()
    path = Path(settings.config_path)
    folder = project_folder(path)
    names = (FILE, f"{FILE}.{settings.env}") if settings.env else (FILE,)
    return (path, *(folder / name for name in names))


class Watch:
    """Deploys what changed since it was made, in a thread of a process that follows deployments."""

    def __init__(self, settings: Settings, tell: Callable[[str], None] = to_stderr) -> None:
        self._started_with = settings
        self._files = Files(watched(settings))
        self._tell = tell
        self._environ = config.environment()  # as it is before workers are told their address

    def start(self) -> None:
        """Begin to look; it ends with the process."""
        threading.Thread(target=self._run, daemon=True, name="config watch").start()

    def _run(self) -> None:
        while True:
            time.sleep(LOOK_S)
            if self._files.have_changed():
                self.deploy()

    def deploy(self) -> None:
        """Deploy the files as they are, or tell what is wrong with them."""
        was = self._started_with
        try:
            settings, _ = config.load(
                Path(was.config_path),
                was.state_dir,
                env=was.env,
                variables=was.variables,
                dev=True,
                environ=self._environ,
            )
            refuse_past_prices(settings, SYSTEM_CLOCK.now_us())
            done = carry_out(
                settings,
                by=by("bulkhead dev"),
                message=ON_SAVE,
                environ=self._environ,
            )
        except tuple(EXIT_CODES) as fault:
            self._tell(f"{Told(fault).message}\nWhat runs stays as it was.")
        else:
            lines = (*differences(done.changes), outcome(done))
            self._tell("\n".join(lines))
