"""Times and periods on a command line, all of them UTC, as microseconds."""

from __future__ import annotations

import datetime
from typing import cast, get_args

import click

from gateway.usage.calendar import PeriodName, Span, named_period, next_month, us

TAKES = "a UTC day such as 2026-11-01, or a time such as 2026-11-01T12:00:00Z"
NAMES = get_args(PeriodName)


class MomentType(click.ParamType[int]):
    """A UTC day or an RFC 3339 time."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """See click."""
        if isinstance(value, int):
            return value
        try:
            moment = datetime.datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is not {TAKES}", param, ctx)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        return us(moment)


class MonthType(click.ParamType[int]):
    """A UTC month, as the time it starts at."""

    name = "YYYY-MM"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """See click."""
        if isinstance(value, int):
            return value
        try:
            start = datetime.datetime.strptime(str(value), "%Y-%m").replace(tzinfo=datetime.UTC)
        except ValueError:
            self.fail(f"{value!r} is not a month: write one such as 2026-10", param, ctx)
        return us(start)


class PeriodType(click.ParamType[Span]):
    """The last whole hour, day or month, or a month or day of its own."""

    name = "period"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Span:
        """See click."""
        text = str(value)
        if text in NAMES:
            start, end = named_period(cast("PeriodName", text), datetime.datetime.now(datetime.UTC))
            return us(start), us(end)
        for form, end_of in (("%Y-%m", next_month), ("%Y-%m-%d", _next_day)):
            try:
                start = datetime.datetime.strptime(text, form).replace(tzinfo=datetime.UTC)
            except ValueError:
                continue
            return us(start), us(end_of(start))
        raise click.BadParameter(f"{text!r} is none of {', '.join(NAMES)}, 2026-11, 2026-11-01")


def _next_day(start: datetime.datetime) -> datetime.datetime:
    return start + datetime.timedelta(days=1)
