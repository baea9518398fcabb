"""When jobs run: pure questions to cron expressions, in UTC. No clock, no I/O.

A run belongs to a boundary, a moment that its expression names. Boundaries divide time into
periods: the one that a run closes ends, exclusively, at its boundary.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from cronsim import CronSim

from runtime.config.sections import CronSettings

INSTANT = datetime.timedelta(microseconds=1)


def next_after(cron: str, moment: datetime.datetime) -> datetime.datetime:
    """The first boundary after `moment`."""
    return next(CronSim(cron, moment))


def last_until(cron: str, moment: datetime.datetime) -> datetime.datetime:
    """The last boundary that isn't after `moment`."""
    return next(CronSim(cron, moment + INSTANT, reverse=True))


def period_before(cron: str, boundary: datetime.datetime) -> datetime.datetime:
    """Where the period that ends at a boundary begins: the boundary before it."""
    return next(CronSim(cron, boundary, reverse=True))


def due(
    crons: Iterable[CronSettings], since: datetime.datetime, now: datetime.datetime
) -> list[tuple[CronSettings, datetime.datetime]]:
    """The jobs with a boundary in (since, now], each with the last one: late runs don't add up."""
    return [(job, last_until(job.cron, now)) for job in crons if next_after(job.cron, since) <= now]
