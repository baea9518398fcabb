"""Hours, months and periods in UTC, as microseconds since 1970."""

from __future__ import annotations

import datetime
from functools import lru_cache
from typing import Literal

US_PER_S = 1_000_000
HOUR_US = 3600 * US_PER_S

Moment = datetime.datetime
PeriodName = Literal["last-hour", "yesterday", "last-month"]
Span = tuple[int, int]  # the end is exclusive

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def us(moment: Moment) -> int:
    """A moment as the store has it; whole seconds."""
    return int(moment.timestamp()) * US_PER_S


def moment_of(at_us: int) -> Moment:
    """The moment, exactly."""
    return _EPOCH + datetime.timedelta(microseconds=at_us)


@lru_cache(maxsize=4096)
def seconds(at_us: int) -> str:
    """Such as 2026-11-01T00:00:00Z; what is below a second is cut."""
    return f"{moment_of(at_us):%Y-%m-%dT%H:%M:%SZ}"


def microseconds(at_us: int) -> str:
    """Such as 2026-11-01T00:00:00.000000Z."""
    return moment_of(at_us).isoformat(timespec="microseconds").replace("+00:00", "Z")


def month_of(at_us: int) -> Span:
    """The month that a time lies in."""
    return _month_of_hour(at_us // HOUR_US)


@lru_cache(maxsize=1024)
def _month_of_hour(hour: int) -> Span:
    start = month_start(moment_of(hour * HOUR_US))
    return us(start), us(next_month(start))


def month_name(at_us: int) -> str:
    """Such as 2026-11: the month that a time lies in."""
    return f"{moment_of(at_us):%Y-%m}"


def named_period(name: PeriodName, now: Moment) -> tuple[Moment, Moment]:
    """The last whole hour, day or month before `now`."""
    match name:
        case "last-hour":
            end = now.replace(minute=0, second=0, microsecond=0)
            return end - datetime.timedelta(hours=1), end
        case "yesterday":
            end = now.replace(hour=0, minute=0, second=0, microsecond=0)
            return end - datetime.timedelta(days=1), end
        case "last-month":
            end = month_start(now)
            return month_start(end - datetime.timedelta(days=1)), end


def month_start(moment: Moment) -> Moment:
    """The first moment of its month."""
    return moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def next_month(moment: Moment) -> Moment:
    """The first moment of the month after."""
    return month_start(month_start(moment) + datetime.timedelta(days=31))
