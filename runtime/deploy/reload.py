"""A process follows the deployments of its state folder: it loads each, and applies it to itself.

What can't be loaded or applied changes nothing; the process shows why (`running`), and goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from runtime.config.secret_values import missing
from runtime.deploy.running import Sign
from runtime.deployments import Current, Deployments, NoDeployment, Origin
from runtime.settings import ConfigError, Settings, load_text

log = structlog.get_logger()

POLL_S = 0.25

Apply = Callable[[Settings, int], Awaitable[None]]  # with the number of the deployment


def load(state_dir: Path, number: int, *, dev: bool) -> Settings:
    """The settings of a deployment. Raises NoDeployment or ConfigError."""
    book = Deployments(state_dir)
    settings, _ = load_text(book.text(number), book.read(number).origin, state_dir, dev=dev)
    return settings


class Start(NamedTuple):
    """What a process starts with."""

    settings: Settings
    current: Current
    number: int  # the current one's, unless there is a fault with that
    fault: str = ""


class Told(NamedTuple):
    """What a process runs, as it tells one that it starts: the files may be damaged by then."""

    text: str
    origin: Origin
    number: int  # 0: it doesn't know


def load_current(state_dir: Path, *, dev: bool, told: Told | None = None) -> Start:
    """The current deployment; else what it was `told`; else the newest one that can be used.

    A deployment that was good where it was checked may not be so here: a secret that only the
    other process was given, or files that were damaged since. Raises the first fault there was:
    NoDeployment, ConfigError or OSError.
    """
    book = Deployments(state_dir)
    current, fault = _current(book)
    for number, ready in _candidates(book, current, told, dev=dev):
        try:
            settings = ready()
        except (ConfigError, NoDeployment, OSError) as why:
            log.error("deployment_unusable", number=number, reason=str(why))
            fault = fault or why
        else:
            return Start(settings, current or Current(number=0, change=0), number, str(fault or ""))
    raise fault or NoDeployment(f"nothing was deployed in {state_dir}")


def _current(book: Deployments) -> tuple[Current | None, Exception | None]:
    """Which deployment counts, and why that can't be told."""
    try:
        if current := book.current():
            return current, None
        fault = NoDeployment(f"nothing was deployed in {book.state_dir}")
    except NoDeployment as why:
        fault = why
        log.error("deployments_unreadable", reason=str(why))
    return None, fault


def _candidates(
    book: Deployments, current: Current | None, told: Told | None, *, dev: bool
) -> Iterator[tuple[int, Callable[[], Settings]]]:
    """What may be started with, the best first: its number, and how it is loaded."""
    if current:
        yield current.number, partial(load, book.state_dir, current.number, dev=dev)
    if told:
        yield told.number, partial(_load_told, told, book.state_dir, dev=dev)
    for number in book.numbers():
        if current is None or number < current.number:
            yield number, partial(load, book.state_dir, number, dev=dev)


def _load_told(told: Told, state_dir: Path, *, dev: bool) -> Settings:
    return load_text(told.text, told.origin, state_dir, dev=dev)[0]


@asynccontextmanager
async def following(start: Start, sign: Sign, apply: Apply) -> AsyncIterator[None]:
    """Inside, every deployment that comes after the one it started with is applied, and shown."""
    task = asyncio.create_task(_follow(start, sign, apply), name="follow deployments")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        sign.close()


async def _follow(start: Start, sign: Sign, apply: Apply) -> None:
    state_dir, dev = start.settings.state_dir, start.settings.dev
    book = Deployments(state_dir)
    seen, number = start.current, start.number
    sign.show(seen, number, start.fault)
    pointer = Pointer(book)
    while True:
        await asyncio.sleep(POLL_S)
        sign.keep_up()
        current = pointer.read()
        if current is None or current == seen:
            continue
        seen = current
        with structlog.contextvars.bound_contextvars(role=sign.shown.role):
            fault = await _applied(state_dir, current.number, dev, apply)
        number = number if fault.reason else current.number
        sign.show(current, number, *fault)


class Pointer:
    """Which deployment is current, asked again and again. What is wrong with it is logged once."""

    def __init__(self, book: Deployments) -> None:
        self._book = book
        self._fault = ""

    def read(self) -> Current | None:
        """None if nothing is, or that can't be read."""
        try:
            current, fault = self._book.current(), ""
        except (NoDeployment, OSError) as why:
            current, fault = None, str(why)
        if fault and fault != self._fault:
            log.warning("deployments_unreadable", reason=fault)
        self._fault = fault
        return current


class NotUsed(NamedTuple):
    """Why a deployment isn't; empty if it is. `lacks`: secrets, if these alone are why."""

    reason: str = ""
    lacks: tuple[str, ...] = ()


async def _applied(state_dir: Path, number: int, dev: bool, apply: Apply) -> NotUsed:
    """Apply a deployment."""
    try:
        await apply(await asyncio.to_thread(load, state_dir, number, dev=dev), number)
    except (ConfigError, NoDeployment) as fault:
        log.error("deployment_not_applied", number=number, reason=str(fault))
        return NotUsed(str(fault), _lacking(fault))
    except Exception as fault:  # whatever it was, the old settings go on
        log.exception("deployment_not_applied", number=number)
        return NotUsed(f"{type(fault).__name__}: {fault}")
    log.info("deployment_applied", number=number)
    return NotUsed()


def _lacking(fault: Exception) -> tuple[str, ...]:
    """The secrets that would mend it."""
    if not isinstance(fault, ConfigError):
        return ()
    unset = {missing(name) for name in fault.report.unset}
    if any(error.message not in unset for error in fault.report.errors):
        return ()
    return tuple(fault.report.unset)
