"""The jobs that triggers run: each does its work once, and says in a line what it did."""

from __future__ import annotations

import asyncio
import datetime
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from anyio import to_thread

from gateway.backups import backup
from gateway.crons.schedule import period_before
from gateway.relay.placement import Placement
from gateway.root import keyring_of
from gateway.store.backup import keep_last
from gateway.stores import database_of
from gateway.usage import files as usage_files
from gateway.usage.calendar import named_period
from gateway.usage.export import Form
from gateway.usage.manifest import signing_key
from gateway.usage.names import names_of
from runtime.config.sections import CronSettings
from runtime.settings import Settings

WARM_S = 600.0  # for a host to load its model, and for memory to be free
POLL_S = 0.5
REAP_S = 60.0  # beyond the longest request, for what a killed gateway left open to be closed

Warm = Callable[[str], Awaitable[None]]


async def carry_out(
    job: CronSettings,
    at: datetime.datetime,
    closed: datetime.datetime | None,
    settings: Settings,
    warm: Warm,
) -> str:
    """Run a job for the boundary `at`; `closed` is the last one that it was done for.

    Returns what it did. Raises whatever goes wrong.
    """
    match job.run:
        case "backup":
            return await _backed_up(job, at, settings)
        case "usage-export" if job.period != "since-last":
            return await _export(job, *named_period(job.period, at), settings)
        case "usage-export":
            if closed is not None and closed >= at:
                return f"the usage until {at:%Y-%m-%dT%H:%MZ} was written before"
            return await _export(job, closed or period_before(job.cron, at), at, settings)
        case "warm":
            await warm(job.model)
            return f"{job.model} has a host"


async def warm(placement: Placement, model: str) -> None:
    """Wait in a model's line as a request would, so that a host starts. Raises Refusal."""
    line = placement.line(model)
    turn = line.turn(0)
    try:
        place = line.take(turn) or await line.wait(turn, sys.maxsize, WARM_S)
        line.leave(place, 0)
    finally:
        line.end(turn)


def folder_of(job: CronSettings, settings: Settings) -> Path:
    """Where a job writes: from the config file's folder, unless it is said in full."""
    return settings.folder / job.to


async def _backed_up(job: CronSettings, at: datetime.datetime, settings: Settings) -> str:
    """Once no other backup or restore runs. A thread that waits would hold up the gateway's end."""
    while True:
        try:
            return await to_thread.run_sync(_back_up, job, at, settings)
        except BlockingIOError:
            await asyncio.sleep(POLL_S)


def _back_up(job: CronSettings, at: datetime.datetime, settings: Settings) -> str:
    """Write one and remove old ones. Raises BlockingIOError while another is made."""
    folder = folder_of(job, settings)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{settings.file.name}-{at:%Y%m%dT%H%M}Z.tar.gz"
    with backup.alone(settings.state_dir, wait=False):
        for left_by_a_killed_one in folder.glob(f".{settings.file.name}-*.tar.gz.*"):
            left_by_a_killed_one.unlink(missing_ok=True)
        backup.create(settings, path)
        keep_last(folder, f"{settings.file.name}-????????T????Z.tar.gz", job.keep)
    return f"wrote {path}"


async def _export(
    job: CronSettings, start: datetime.datetime, end: datetime.datetime, settings: Settings
) -> str:
    folder, database = folder_of(job, settings), database_of(settings)
    await usage_files.closed(database, end, settings.file.limits.wall_s + REAP_S)
    order = usage_files.Order(
        start=start,
        end=end,
        form=Form(job.format, job.focus_version, job.granularity),
        names=names_of(settings.file),
        together=job.tenants == "together",
    )
    key = signing_key(keyring_of(settings))
    files = await to_thread.run_sync(usage_files.write, folder, database, order, key)
    wrote = "1 file" if len(files) == 1 else f"{len(files)} files"
    return f"wrote {wrote} for {start:%Y-%m-%dT%H:%MZ} to {end:%Y-%m-%dT%H:%MZ}"
