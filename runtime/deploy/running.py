"""Which processes of a state folder run, and which deployment each of them runs.

Each shows a small file in the runtime directory, and holds a lock on it for as long as it lives: a
lock tells the living from the dead, which a pid can't, since pids come again.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Literal

import structlog
from msgspec import Struct, json

from runtime import durable
from runtime.deployments import Current
from runtime.rundir import make, runtime_dir

log = structlog.get_logger()

Role = Literal["node", "gateway"]
PREFIX = "runs-"


class Trouble(Struct, frozen=True, kw_only=True):
    """What went wrong last with a server attached by URL, as a gateway knows."""

    url: str
    reason: str
    at: float  # unix seconds
    is_down: bool  # it hasn't been reached since it began, or is sent nothing
    breaker: str = "closed"  # or "open", "half-open": it is sent nothing, or a probe
    guard: str = ""  # why the guard in it isn't trusted, so that it is sent nothing


class Running(Struct, frozen=True, kw_only=True):
    """A process, as it shows itself."""

    role: Role
    pid: int
    dev: bool
    number: int = 0  # the deployment that it runs; 0: it is starting
    change: int = 0  # how far it has followed; see Current
    fault: str = ""  # why it doesn't run what it should by that
    lacks: tuple[str, ...] = ()  # secrets, if these alone are why
    troubles: dict[str, tuple[Trouble, ...]] = {}  # by model


class Sign:
    """This process's file. Made before anything else, closed at the end.

    What can't be written, as on a full disk, is told once, and written when `keep_up` finds room.
    """

    def __init__(self, state_dir: Path, role: Role, *, dev: bool) -> None:
        self._state_dir = state_dir
        self._file: FileIO | None = None
        self._is_behind = self._is_told = False
        self.shown = Running(role=role, pid=os.getpid(), dev=dev)
        self._write()

    def show(
        self, current: Current, number: int, fault: str = "", lacks: tuple[str, ...] = ()
    ) -> None:
        """It has looked at `current`, and runs `number`: the same, unless there is a fault."""
        self._show(number=number, change=current.change, fault=fault, lacks=lacks)

    def tell(self, troubles: dict[str, tuple[Trouble, ...]]) -> None:
        """It knows this of the attached servers."""
        if self._file is not None and troubles != self.shown.troubles:
            self._show(troubles=troubles)

    def keep_up(self) -> None:
        """Write what couldn't be written before, if there is any."""
        if not self._is_behind:
            return
        try:
            self._write()
        except OSError as fault:
            if not self._is_told:
                log.warning("sign_not_written", role=self.shown.role, reason=str(fault))
            self._is_told = True
        else:
            self._is_behind = self._is_told = False

    def close(self) -> None:
        """It ends."""
        if self._file is not None:
            Path(self._file.name).unlink(missing_ok=True)
            self._path.unlink(missing_ok=True)
            self._file.close()
            self._file = None

    @property
    def _path(self) -> Path:
        name = f"{PREFIX}{self.shown.role}-{self.shown.pid}"
        return runtime_dir(self._state_dir) / name

    def _show(self, **changes: object) -> None:
        fields = {name: getattr(self.shown, name) for name in self.shown.__struct_fields__}
        self.shown, self._is_behind = Running(**fields | changes), True
        self.keep_up()

    def _write(self) -> None:
        make(self._state_dir)
        draft = self._path.with_name(f".{self._path.name}")
        file = draft.open("wb", buffering=0)
        fcntl.flock(file, fcntl.LOCK_EX)  # before it is seen, so that what is seen is locked
        try:
            with durable.naming(self._path):
                data = json.encode(self.shown)
                if file.write(data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            file.close()
            raise
        draft.replace(self._path)
        if self._file is not None:
            self._file.close()
        self._file = file


def running(state_dir: Path) -> list[Running]:
    """The processes that live now. The files of dead ones are cleared away."""
    found = (_read(path) for path in sorted(runtime_dir(state_dir).glob(f"{PREFIX}*")))
    return [process for process in found if process is not None]


def troubles(state_dir: Path) -> dict[str, dict[str, Trouble]]:
    """What went wrong last with attached servers, by model and URL, as any gateway here knows."""
    told = [
        (model, trouble)
        for process in running(state_dir)
        for model, each in process.troubles.items()
        for trouble in each
    ]
    found: dict[str, dict[str, Trouble]] = {}
    for model, trouble in sorted(told, key=lambda pair: pair[1].at):
        found.setdefault(model, {})[trouble.url] = trouble
    return found


def summed_up(urls: Sequence[str], known: Mapping[str, Trouble]) -> Trouble | None:
    """The last trouble with any of a model's servers; it is down if they all are."""
    found = [known[url] for url in urls if url in known]
    if not found:
        return None
    all_down = len(found) == len(urls) and all(trouble.is_down for trouble in found)
    last = max(found, key=lambda trouble: trouble.at)
    return Trouble(url=last.url, reason=last.reason, at=last.at, is_down=all_down)


def _read(path: Path) -> Running | None:
    while True:
        try:
            with path.open("rb") as file:
                data = file.read()
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return json.decode(data, type=Running)
                if os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                    path.unlink()  # nobody holds it, and nobody has just replaced it
                    return None
        except FileNotFoundError:
            return None
