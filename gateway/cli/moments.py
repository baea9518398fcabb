"""Spans and moments as one types them: `30m`, `24h`, `90d`; `2026-12-31`, a time with its zone."""

from __future__ import annotations

import datetime
import re

import click

from gateway.clock import SYSTEM_CLOCK

US = 1_000_000
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_SPAN_S = 100 * 366 * 86400
_SPAN = re.compile(r"([0-9]{1,10})([smhd])")


class Span(click.ParamType[int]):
    """A span of time in microseconds; `0` is none."""

    name = "span"

    def convert(
        self, value: object, param: click.Parameter | None, context: click.Context | None
    ) -> int:
        """See click."""
        found = span_us(str(value))
        if found is None:
            self.fail(
                f"{value!r} is no span of time: write 90s, 30m, 24h or 7d, say, or 0.",
                param,
                context,
            )
        return found


class Moment(click.ParamType[int]):
    """A moment in microseconds UTC, or a span from now."""

    name = "moment"

    def convert(
        self, value: object, param: click.Parameter | None, context: click.Context | None
    ) -> int:
        """See click."""
        text = str(value)
        span = span_us(text)
        if span:
            return SYSTEM_CLOCK.now_us() + span
        found = moment_us(text)
        if found is None:
            told = f"{text!r} is no moment: write 90d, 2026-12-31 or 2026-12-31T12:00:00Z, say."
            self.fail(told, param, context)
        return found


def span_us(text: str) -> int | None:
    """A span in microseconds, or None if that is none."""
    if text == "0":
        return 0
    match = _SPAN.fullmatch(text)
    seconds = int(match[1]) * UNITS[match[2]] if match else MAX_SPAN_S + 1
    return seconds * US if seconds <= MAX_SPAN_S else None


def moment_us(text: str) -> int | None:
    """A day, which begins at 00:00 UTC, or a time with its zone; None if it's neither."""
    try:
        if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            when = datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)
        else:
            when = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if when.tzinfo is None else int(when.timestamp() * US)
