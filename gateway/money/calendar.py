"""Billing periods: calendar months, UTC. Pure; times are microseconds since 1970."""

from __future__ import annotations

import datetime
import re

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_US = datetime.timedelta(microseconds=1)
_MONTH = re.compile(r"([0-9]{4})-([0-9]{2})", re.ASCII)

HOUR_US = 3_600_000_000


class NoSuchMonth(ValueError):
    """Not a month."""


def month_of(us: int) -> int:
    """The start of the month that a moment is in."""
    moment = _EPOCH + us * _US
    return _us(moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0))


def month_after(starts_at: int) -> int:
    """The start of the month after the one that starts then."""
    return month_of(starts_at + 32 * 24 * HOUR_US)


def parse_month(text: str) -> int:
    """The start of a month such as "2026-10". Raises NoSuchMonth."""
    shape = _MONTH.fullmatch(text)
    try:
        assert shape
        return _us(datetime.datetime(int(shape[1]), int(shape[2]), 1, tzinfo=datetime.UTC))
    except (AssertionError, ValueError):
        raise NoSuchMonth(f"{text!r} is not a month: write one such as 2026-10") from None


def month_name(starts_at: int) -> str:
    """What `parse_month` reads."""
    return f"{_EPOCH + starts_at * _US:%Y-%m}"


def hour_of(us: int) -> int:
    """The start of the hour that a moment is in."""
    return us - us % HOUR_US


def _us(moment: datetime.datetime) -> int:
    return (moment - _EPOCH) // _US
