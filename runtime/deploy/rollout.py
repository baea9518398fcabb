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
from runtime.deployments import Current, Deployments, NoDeployment
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


class Plan(Struct, frozen=True, kw_only=True):
    """What a roll-out would do."""

    settings: Settings
    changes: list[Change] | None  # None: there is nothing to compare with
    running: list[Running]


class Done(Struct, frozen=True, kw_only=True):
    """What it did. `running` is empty if nothing runs: the next start will use it."""

    number: int
    is_new: bool
    running: list[Running]
    seconds: float


def plan(settings: Settings, environ: Mapping[str, str] | None = None) -> Plan:
    """Compare with what is current. Raises NeedsRestart."""
    processes, old = running(settings.state_dir), _current(settings, environ)
    if old is not None and processes:
        paths = compare.needs_restart(old.file, settings.file)
        if paths:
            raise NeedsRestart(paths)
    found = None if old is None else compare.changes(old.file, settings.file)
    return Plan(settings=settings, changes=found, running=processes)


def carry_out(
    plan: Plan, *, by: str, message: str = "", restores: int = 0, timeout_s: float = 30
) -> Done:
    """Write it down, and return when every process runs it. Raises NotApplied."""
    began, settings = time.monotonic(), plan.settings
    weights.ensure(settings)
    book = Deployments(settings.state_dir)
    with book.writing():
        before = book.current()
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
        running=processes,
        seconds=time.monotonic() - began,
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
            told = (f"the {p.role} (pid {p.pid}) can't use it: {p.fault}" for p in failed)
            raise NotApplied("\n".join(told))
        behind = [p for p in processes if p.change < current.change]
        if not behind:
            return processes
        if time.monotonic() > deadline:
            names = ", ".join(f"{p.role} (pid {p.pid})" for p in behind)
            raise StillWaiting(f"no word after {timeout_s:g} s from {names}; see its log")
        time.sleep(LOOK_S)


class StillWaiting(NotApplied):
    """A process hasn't said whether it could."""


def _brought_back(
    book: Deployments, before: Current | None, failed: Current, fault: NotApplied, timeout_s: float
) -> NotApplied:
    """What to say of a deployment that failed, once the one before is current again."""
    head = f"deployment {failed.number} was not applied: {fault}\n"
    if isinstance(fault, StillWaiting) or before is None or before.number == failed.number:
        return NotApplied(head + f"deployment {failed.number} stays current")
    with book.writing():
        if book.current() != failed:
            return NotApplied(head + "another was deployed since")
        message = f"{failed.number} could not be applied"
        back = book.restore(book.read(before.number), by=by("bulkhead"), message=message)
    told = f"deployment {before.number} is back, as {back.number}"
    try:
        wait(book.state_dir, back, timeout_s)
    except NotApplied as again:
        told += f", and not applied either: {again}"
    return NotApplied(head + told)


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
