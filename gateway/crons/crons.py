"""Runs the jobs of [triggers] by the clock, in one process of a state folder at a time.

A lock says which, also while one worker takes over from another. The time of the last look is kept
in it: a boundary that falls into a restart is not missed, one that falls into a longer absence is.
A job never runs twice at once, and one that fails is told in the log and hurts nothing else.
"""

from __future__ import annotations

import asyncio
import datetime
import fcntl
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec
import structlog

from gateway.clock import Clock
from gateway.crons.jobs import Warm, carry_out
from gateway.crons.schedule import due
from runtime import durable
from runtime.config.sections import CronSettings
from runtime.settings import Settings

log = structlog.get_logger()

LOOK_EVERY_S = 1.0
NO_TIME = datetime.timedelta()
FIRST = datetime.datetime.min.replace(tzinfo=datetime.UTC)
SET_BACK = datetime.timedelta(hours=3)  # a clock that goes back further was wrong before
RESTART = datetime.timedelta(minutes=5)  # how long an absence may be for its boundaries to count
FOLDER = "crons"

Moment = datetime.datetime


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The last run of a job."""

    at: Moment  # its boundary
    ended_at: Moment
    duration_s: float
    ok: bool
    said: str  # what it did, or what went wrong
    closed: Moment | None = None  # the last boundary that it was done for


class Book:
    """The last run of each job, in the state folder."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / FOLDER

    def last(self, job: CronSettings) -> Run | None:
        """None: it hasn't run yet, or what is written there can't be read."""
        try:
            return msgspec.json.decode(self._path(job).read_bytes(), type=Run)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def note(self, job: CronSettings, run: Run) -> None:
        """Write it down, durably."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        durable.replace(self._path(job), msgspec.json.encode(run) + b"\n")

    def _path(self, job: CronSettings) -> Path:
        """By what the job does and when; how many backups it keeps changes nothing."""
        same = msgspec.structs.replace(job, keep=1)
        digest = hashlib.sha256(msgspec.json.encode(same)).hexdigest()[:16]
        return self._folder / f"{job.run}-{digest}.json"


async def run_once(
    job: CronSettings, at: Moment, settings: Settings, warm: Warm, clock: Clock
) -> Run:
    """Run a job for a boundary, and note how it went. Raises OSError if that can't be noted."""
    book = Book(settings.state_dir)
    before = book.last(job)
    closed = before.closed if before else None
    began = time.monotonic()
    try:
        ok, said = True, await carry_out(job, at, closed, settings, warm)
    except Exception as fault:  # noqa: BLE001 - whatever it is, the gateway goes on
        ok, said = False, f"{type(fault).__name__}: {fault}"
    run = Run(
        at=at,
        ended_at=moment(clock),
        duration_s=round(time.monotonic() - began, 3),
        ok=ok,
        said=said,
        closed=at if ok else closed,
    )
    book.note(job, run)
    return run


class Crons:
    """Looks at the clock, and starts what is due. `settings` are asked for at each look."""

    def __init__(self, settings: Callable[[], Settings], warm: Warm, clock: Clock) -> None:
        self._settings = settings
        self._warm = warm
        self._clock = clock
        self._lock: IO[str] | None = None
        self._since: Moment = moment(clock)
        self._running: dict[CronSettings, asyncio.Task[None]] = {}
        self._begun: dict[CronSettings, Moment] = {}  # the last boundary of each
        self._fault = ""  # of the last look; told once

    async def follow(self) -> None:
        """Until cancelled; what runs then is cancelled too."""
        try:
            while True:
                self._try_to_look()
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)
            self.close()

    def close(self) -> None:
        """Another process may run the jobs."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _try_to_look(self) -> None:
        try:
            self.look()
        except OSError as fault:  # the state folder can't be written to
            if not self._fault:
                log.error("crons_cannot_look", fault=str(fault))
            self._fault = str(fault)
        else:
            self._fault = ""

    def look(self) -> None:
        """Start what has become due since the last look."""
        settings = self._settings()
        crons = settings.file.triggers.crons
        now = moment(self._clock)
        if not crons or not self._is_ours(settings.state_dir, now):
            return
        for job, at in due(crons, self._since, now):
            self._start(job, at, settings)
        self._since = now
        self._note_look(now)

    def _start(self, job: CronSettings, at: Moment, settings: Settings) -> None:
        """Once a boundary, also if the clock was set back before it."""
        if NO_TIME <= self._begun.get(job, FIRST) - at < SET_BACK:
            return
        self._begun[job] = at
        running = self._running.get(job)
        if running is not None and not running.done():
            log.warning("cron_skipped", run=job.run, cron=job.cron, why="its last run goes on")
            return
        self._running[job] = asyncio.create_task(self._run(job, at, settings))

    async def _run(self, job: CronSettings, at: Moment, settings: Settings) -> None:
        tell = log.bind(run=job.run, cron=job.cron, at=at.isoformat())
        try:
            run = await run_once(job, at, settings, self._warm, self._clock)
        except OSError as fault:
            tell.error("cron_not_noted", fault=str(fault))
            return
        note = tell.info if run.ok else tell.error
        event = "cron_done" if run.ok else "cron_failed"
        note(event, duration_s=run.duration_s, said=run.said)

    def _is_ours(self, state_dir: Path, now: Moment) -> bool:
        """Whether this process runs the jobs; from then on, since the last look of the last one."""
        if self._lock is not None:
            return True
        file = (state_dir / "crons.lock").open("a+", encoding="ascii")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        file.seek(0)
        self._lock, self._since = file, last_look(file.read(), now)
        return True

    def _note_look(self, now: Moment) -> None:
        assert self._lock is not None
        self._lock.seek(0)
        self._lock.truncate()
        self._lock.write(now.isoformat())
        self._lock.flush()


def last_look(noted: str, now: Moment) -> Moment:
    """Where to go on: at the noted look if that was lately, else now."""
    try:
        then = datetime.datetime.fromisoformat(noted)
    except ValueError:
        return now
    return then if then.tzinfo and now - RESTART <= then <= now else now


def moment(clock: Clock) -> Moment:
    """Now, in UTC."""
    return datetime.datetime.fromtimestamp(clock.now_us() / 1e6, datetime.UTC)
