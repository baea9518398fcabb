"""When a budget's windows begin and end: local days and months, as instants in UTC.

A day with a change of clocks has 23 or 25 hours, and is one window all the same. Instants are whole
microseconds since 1970; a window's end is exclusive, and is the next one's start.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Literal
from zoneinfo import ZoneInfo

Kind = Literal["daily", "monthly", "total"]

KINDS: tuple[Kind, ...] = ("daily", "monthly", "total")
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
US = datetime.timedelta(microseconds=1)
_DAY = datetime.timedelta(days=1)


class NoSuchZone(ValueError):
    """Not the name of a time zone that this machine knows."""


@dataclass(frozen=True, slots=True)
class Window:
    """[starts_at, ends_at) in microseconds UTC; it never ends if `ends_at` is None."""

    starts_at: int
    ends_at: int | None


def zone_of(name: str) -> ZoneInfo:
    """The time zone of an IANA name, such as "Europe/Paris". Raises NoSuchZone."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # a path, a folder, or none that is known
        raise NoSuchZone(
            f"{name!r} is not a time zone that this machine knows: write an IANA name, such as "
            '"Europe/Paris" or "UTC"'
        ) from None


def window_at(kind: Kind, now_us: int, zone: ZoneInfo, created_at: int) -> Window:
    """The window that `now_us` is in. That of a total is all the time since the budget was made."""
    if kind == "total":
        return Window(created_at, None)
    day = (EPOCH + now_us * US).astimezone(zone).date()
    first = day if kind == "daily" else day.replace(day=1)
    # Clocks that are set back past midnight show a day twice; they never move us by a whole window.
    while start_of(first, zone) > now_us:
        first = _before(kind, first)
    while (end := start_of(_after(kind, first), zone)) <= now_us:
        first = _after(kind, first)
    return Window(start_of(first, zone), end)


def start_of(day: datetime.date, zone: ZoneInfo) -> int:
    """When a local day begins: at midnight, or where the clocks that skip it are set forward."""
    midnight = datetime.datetime.combine(day, datetime.time(), zone)
    return (midnight.astimezone(datetime.UTC) - EPOCH) // US


def _after(kind: Kind, first: datetime.date) -> datetime.date:
    if kind == "daily":
        return first + _DAY
    return (first + 31 * _DAY).replace(day=1)


def _before(kind: Kind, first: datetime.date) -> datetime.date:
    day = first - _DAY
    return day if kind == "daily" else day.replace(day=1)
