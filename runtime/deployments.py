"""What was deployed to a state folder: configurations with numbers, and which of them is current.

    deployments/0007.toml    the text of the config file, as it was
    deployments/0007.json    when, by whom, and how the text is to be read
    deployments/current      the number that counts, replaced whole

Processes load the current deployment and never the file that it came from, so a file that somebody
is editing can't hurt what runs. Whoever writes here holds a lock and checks the text before.
"""

from __future__ import annotations

import datetime
import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from msgspec import MsgspecError, Struct, json

from runtime import durable

KEPT = 100

T = TypeVar("T")


class NoDeployment(Exception):
    """There is no such deployment; the message says which was looked for."""


class BadPointer(NoDeployment):
    """Which deployment is current can't be told; the message says how to make one current."""


class Origin(Struct, frozen=True, kw_only=True):
    """How a text is to be read: relative paths in it start at its file's folder."""

    config_path: str = ""  # empty: the built-in configuration
    env: str = ""
    variables: tuple[str, ...] = ()  # "NAME:value", as --var gave them


class Deployment(Struct, frozen=True, kw_only=True):
    """What is written down beside a text. It never changes."""

    number: int
    at: datetime.datetime
    by: str  # the command and its pid
    origin: Origin
    message: str = ""
    restores: int = 0  # the deployment that a rollback brought back


class Current(Struct, frozen=True, kw_only=True):
    """The deployment that counts. `change` grows each time that processes must look at it again."""

    number: int
    change: int


class Deployments:
    """The deployments of one state folder."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self._folder = state_dir / "deployments"

    def current(self) -> Current | None:
        """The deployment that counts, or None before the first. Raises BadPointer."""
        try:
            current = _decoded(self._pointer, Current)
            is_there = self._path(current.number, "json").exists()
        except FileNotFoundError:
            return None
        except (NoDeployment, OSError) as fault:
            raise BadPointer(f"{_told(fault, self._pointer)}; {self._remedy()}") from None
        if not is_there:
            names = f"{self._pointer} names deployment {current.number}, which isn't there"
            raise BadPointer(f"{names}; {self._remedy()}")
        return current

    def read(self, number: int) -> Deployment:
        """What is known of a deployment. Raises NoDeployment."""
        path = self._path(number, "json")
        try:
            return _decoded(path, Deployment)
        except FileNotFoundError:
            raise NoDeployment(f"there is no deployment {number} in {self._folder}") from None
        except OSError as fault:
            raise NoDeployment(_told(fault, path)) from None

    def text(self, number: int) -> str:
        """The text of a deployment. Raises NoDeployment."""
        path = self._path(number, "toml")
        try:
            return path.read_bytes().decode()
        except FileNotFoundError:
            raise NoDeployment(f"there is no deployment {number} in {self._folder}") from None
        except (UnicodeDecodeError, OSError) as fault:
            raise NoDeployment(_told(fault, path)) from None

    def history(self) -> list[Deployment]:
        """All that are kept and can be read, the newest first."""
        found = []
        for number in self.numbers():
            with suppress(NoDeployment):
                found.append(self.read(number))
        return found

    def before(self, deployment: Deployment) -> Deployment:
        """What a rollback from there brings back: one more step each time. Raises NoDeployment."""
        base = deployment.restores or deployment.number
        for earlier in self.history():
            if earlier.number < base:
                return earlier
        raise NoDeployment(f"no deployment before {base} is kept in {self._folder}")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold this while comparing with the current one and adding the next."""
        self.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)  # its parents need no mode
        self._folder.mkdir(exist_ok=True, mode=0o700)
        with (self._folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def add(
        self, text: str, origin: Origin, *, by: str, message: str = "", restores: int = 0
    ) -> Current:
        """Make a text the current deployment: a new number, unless it is what's current already.

        Raises OSError, or BadPointer if no file can be put where the pointer belongs. The number
        isn't kept, then.
        """
        current = self._base()
        if current.number and self._is_same(current.number, text, origin):
            return self._point(current)
        deployment = Deployment(
            number=max([0, *self.numbers()]) + 1,
            at=datetime.datetime.now(datetime.UTC),
            by=by,
            origin=origin,
            message=message,
            restores=restores,
        )
        with self._whole(deployment.number):
            durable.replace(self._path(deployment.number, "toml"), text.encode())
            durable.replace(self._path(deployment.number, "json"), json.encode(deployment) + b"\n")
            return self._point(Current(number=deployment.number, change=current.change))

    def restore(self, target: Deployment, *, by: str, message: str = "") -> Current:
        """Make an earlier deployment's text the current one, under a new number."""
        first = target.restores or target.number  # whose text it is
        text = self.text(target.number)
        return self.add(text, target.origin, by=by, message=message, restores=first)

    def renew(self) -> Current:
        """Have all processes load the current one again: its secrets may have changed."""
        with self.writing():
            current = self.current()
            if current is None:
                raise NoDeployment(f"nothing was deployed in {self._folder}")
            return self._point(current)

    def _point(self, current: Current) -> Current:
        current = Current(number=current.number, change=current.change + 1)
        durable.replace(self._pointer, json.encode(current) + b"\n")
        for number in self.numbers()[KEPT:]:
            self._remove(number)
        return current

    @contextmanager
    def _whole(self, number: int) -> Iterator[None]:
        """A deployment that couldn't be made current is none: nothing is left of it."""
        try:
            yield
        except OSError:
            with suppress(OSError, BadPointer):
                current = self.current()
                if current is None or current.number != number:
                    self._remove(number)
            raise

    def _remove(self, number: int) -> None:
        for kind in ("json", "toml"):  # the record first: what has one is whole
            self._path(number, kind).unlink(missing_ok=True)

    def _base(self) -> Current:
        """What the next one follows. After a pointer that can't be read its change is the time.

        That is more than any count of changes, so who had followed the old one looks again.
        """
        try:
            return self.current() or Current(number=0, change=0)
        except BadPointer:
            if self._pointer.is_dir():
                raise
            return Current(number=0, change=int(time.time()))

    def _remedy(self) -> str:
        kept = self.numbers()
        rollback = f", or `bulkhead rollback {kept[0]}` the newest that is kept" if kept else ""
        first = "remove that folder; then " if self._pointer.is_dir() else ""
        return f"{first}`bulkhead deploy` makes the config file's current again{rollback}"

    def _is_same(self, number: int, text: str, origin: Origin) -> bool:
        try:
            return self.read(number).origin == origin and self.text(number) == text
        except NoDeployment:  # its files are damaged: the same text gets new ones
            return False

    def numbers(self) -> list[int]:
        """Those whose record is written, the newest first."""
        names = (path.stem for path in self._folder.glob("*.json"))
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

    @property
    def _pointer(self) -> Path:
        return self._folder / "current"

    def _path(self, number: int, kind: str) -> Path:
        return self._folder / f"{number:04}.{kind}"


def _decoded(path: Path, kind: type[T]) -> T:
    try:
        return json.decode(path.read_bytes(), type=kind)
    except (MsgspecError, UnicodeDecodeError) as fault:
        raise NoDeployment(_told(fault, path)) from None


def _told(fault: Exception, path: Path) -> str:
    if isinstance(fault, NoDeployment):
        return str(fault)
    why = fault.strerror if isinstance(fault, OSError) else None
    return f"{path} can't be read: {why or fault}"
