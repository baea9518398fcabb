"""A configuration is rolled out: compared with what runs, written down, and waited for.

It comes checked (`settings.load`). What only a restart can change is refused before anything is
written. A process that can't apply it says so, and then the one before is brought back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from runtime import weights
from runtime.deploy import changes as compare
from runtime.deploy.changes import Change
from runtime.deploy.running import Running, running
from runtime.deployments import BadPointer, Current, Deployments, NoDeployment
from runtime.settings import ConfigError, Settings, load_text

LOOK_S = 0.05


class NeedsRestart(Exception):
    """What differs counts only at a start; the message says what, and what to do."""

    def __init__(self, paths: list[str]) -> None:
        listed = "".join(f"\n  - {path}" for path in paths)
        super().__init__(
            f"not deployed: this can't change while Bulkhead runs:{listed}\n"
            "put it back, or stop what runs and start it again with the new file"
        )
        self.paths = paths


class NotApplied(Exception):
    """A process doesn't run it: it couldn't, or hasn't said yet. The message says which and why."""


class Done(Struct, frozen=True, kw_only=True):
    """What it did. `running` is empty if nothing runs: the next start will use it."""

    number: int
    is_new: bool
    changes: list[Change] | None  # None: there was nothing to compare with
    running: list[Running]
    seconds: float
    superseded_by: int | None = None  # the number of another, deployed meanwhile


def plan(settings: Settings, environ: Mapping[str, str] | None = None) -> list[Change] | None:
    """What differs from what is current; None: there is nothing to compare with.

    Raises NeedsRestart.
    """
    old = _current(settings, environ)
    if old is None:
        return None
    if running(settings.state_dir) and (paths := compare.needs_restart(old.file, settings.file)):
        raise NeedsRestart(paths)
    return compare.changes(old.file, settings.file)


def carry_out(  # noqa: PLR0913 - what is deployed, what is written down of it, and how long
    settings: Settings,
    *,
    by: str,
    message: str = "",
    restores: int = 0,
    follows: int | None = None,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = 30,
) -> Done:
    """Write it down, and return when every process runs it.

    `follows`: the deployment that must still be current. Raises NeedsRestart or NotApplied.
    """
    began = time.monotonic()
    plan(settings, environ)  # what must be refused is, before weights are fetched for it
    weights.ensure(settings)
    book = Deployments(settings.state_dir)
    with book.writing():
        before = _pointer(book)
        if follows is not None and before is not None and before.number != follows:
            raise NotApplied(
                f"deployment {before.number} was made meanwhile, so nothing was changed; "
                "look at it (`bulkhead deployments list`), then try again"
            )
        found = plan(settings, environ)  # with the one that it follows, whoever else deploys
        current = book.add(
            settings.text, settings.origin, by=by, message=message, restores=restores
        )
    try:
        processes = wait(settings.state_dir, current, timeout_s)
    except NotApplied as fault:
        raise _brought_back(book, before, current, fault, timeout_s) from None
    return Done(
        number=current.number,
        is_new=before is None or before.number != current.number,
        changes=found,
        running=processes,
        seconds=time.monotonic() - began,
        superseded_by=_later(book, current),
    )


def by(command: str) -> str:
    """Who deploys, for the record."""
    return f"{command} (pid {os.getpid()})"


def wait(state_dir: Path, current: Current, timeout_s: float) -> list[Running]:
    """Every process that runs, once each has looked at `current`. Raises NotApplied."""
    deadline = time.monotonic() + timeout_s
    while True:
        processes = running(state_dir)
        failed = [p for p in processes if p.change >= current.change and p.fault]
        if failed:
            raise NotApplied("\n".join(map(_told, failed)))
        behind = [p for p in processes if p.change < current.change]
        if not behind:
            return processes
        if time.monotonic() > deadline:
            names = ", ".join(f"{p.role} (pid {p.pid})" for p in behind)
            raise StillWaiting(f"no word after {timeout_s:g} s from {names}; see its log")
        time.sleep(LOOK_S)


def _told(process: Running) -> str:
    """Why a process can't use it. A secret that only we were given, it can't have heard of."""
    who = f"the {process.role} (pid {process.pid})"
    if not process.lacks:
        return f"{who} can't use it: {process.fault}"
    names = " and ".join(process.lacks)
    puts = " and ".join(f"`bulkhead secret put {name}`" for name in process.lacks)
    return (
        f"{who} doesn't have {names}, which this command has: store it for both with {puts}, "
        "or start Bulkhead again with it in its environment"
    )


class StillWaiting(NotApplied):
    """A process hasn't said whether it could."""


def _brought_back(
    book: Deployments, before: Current | None, failed: Current, fault: NotApplied, timeout_s: float
) -> NotApplied:
    """What to say of a deployment that failed, once the one before is current again."""
    head = f"deployment {failed.number} was not applied: {fault}\n"
    if later := _later(book, failed):
        told = f"deployment {failed.number} was superseded by {later} before all had applied it"
        return NotApplied(f"{told}; see `bulkhead deployments list`")
    if isinstance(fault, StillWaiting) or before is None or before.number == failed.number:
        return NotApplied(head + f"deployment {failed.number} stays current")
    with book.writing():
        if _pointer(book) != failed:
            return NotApplied(head + "another was deployed since")
        message = f"{failed.number} could not be applied"
        back = book.restore(book.read(before.number), by=by("bulkhead"), message=message)
    told = f"deployment {before.number} is back, as {back.number}"
    try:
        wait(book.state_dir, back, timeout_s)
    except NotApplied as again:
        told += f", and not applied either: {again}"
    return NotApplied(head + told)


def _later(book: Deployments, current: Current) -> int | None:
    """The number of what is current by now, if that is another."""
    now = _pointer(book)
    return now.number if now and now.number != current.number else None


def _pointer(book: Deployments) -> Current | None:
    """Which is current, if that can be read; a deployment mends it if not."""
    try:
        return book.current()
    except BadPointer:
        return None


def _current(settings: Settings, environ: Mapping[str, str] | None) -> Settings | None:
    """The settings of the current deployment, if there is one that can still be read."""
    book = Deployments(settings.state_dir)
    try:
        current = book.current()
        if current is None:
            return None
        text, origin = book.text(current.number), book.read(current.number).origin
        old, _ = load_text(text, origin, settings.state_dir, dev=settings.dev, environ=environ)
    except (ConfigError, NoDeployment):
        return None
    return old
