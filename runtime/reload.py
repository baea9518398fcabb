"""A process follows the deployments of its state folder: it loads each, and applies it to itself.

What can't be loaded or applied changes nothing; the process shows why (`running`), and goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import structlog

from runtime.deployments import Current, Deployments, NoDeployment
from runtime.running import Sign
from runtime.settings import ConfigError, Settings, load_text

log = structlog.get_logger()

POLL_S = 0.25


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


def load_current(state_dir: Path, *, dev: bool) -> Start:
    """The current deployment, or the newest before it that can be used.

    A deployment that was good where it was checked may not be so here: a secret that only the
    other process was given. Raises NoDeployment, or the current one's ConfigError.
    """
    book = Deployments(state_dir)
    current = book.current()
    if current is None:
        raise NoDeployment(f"nothing was deployed in {state_dir}")
    faults: list[ConfigError] = []
    for number in (number for number in book.numbers() if number <= current.number):
        try:
            settings = load(state_dir, number, dev=dev)
        except ConfigError as fault:
            log.error("deployment_unusable", number=number, reason=str(fault))
            faults.append(fault)
        else:
            return Start(settings, current, number, str(faults[0]) if faults else "")
    raise faults[0]


async def follow(
    state_dir: Path, start: Start, sign: Sign, apply: Callable[[Settings], Awaitable[None]]
) -> None:
    """Apply every deployment that comes after the one it started with, until cancelled."""
    book = Deployments(state_dir)
    seen, number = start.current, start.number
    sign.show(seen, number, start.fault)
    while True:
        await asyncio.sleep(POLL_S)
        try:
            current = book.current()
        except (NoDeployment, OSError) as fault:
            log.warning("deployments_unreadable", reason=str(fault))
            continue
        if current is None or current == seen:
            continue
        seen, reason = current, ""
        try:
            await apply(
                await asyncio.to_thread(load, state_dir, current.number, dev=start.settings.dev)
            )
        except (ConfigError, NoDeployment) as fault:
            reason = str(fault)
            log.error("deployment_not_applied", number=current.number, reason=reason)
        except Exception as fault:  # whatever it was, the old settings go on
            reason = f"{type(fault).__name__}: {fault}"
            log.exception("deployment_not_applied", number=current.number)
        else:
            number = current.number
            log.info("deployment_applied", number=number)
        sign.show(current, number, reason)
