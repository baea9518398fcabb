"""The period that a query asks for: `start_time` and `end_time`, as OpenAI calls them."""

from __future__ import annotations

import datetime

from gateway.errors import BadRequest

US = 1_000_000
DAY_S = 86400
MAX_TIME_S = 253_402_300_799  # the year 9999


def period_of(query: dict[str, str], now_us: int) -> tuple[int, int]:
    """[start, end) in µs; by default the last 30 days, up to now. Raises BadRequest."""
    now_s = now_us // US + 1
    start = _time(query, "start_time", now_s - 30 * DAY_S)
    end = _time(query, "end_time", now_s)
    if start >= end:
        raise BadRequest("start_time: must be before end_time", param="start_time")
    return start * US, end * US


def is_of(query: dict[str, str], period: tuple[int, int]) -> bool:
    """Whether a query names this period, as far as it names one. Raises BadRequest."""
    start_us, end_us = period
    same_start = _time(query, "start_time", start_us // US) * US == start_us
    return same_start and _time(query, "end_time", end_us // US) * US == end_us


def _time(query: dict[str, str], name: str, default: int) -> int:
    """A time in unix seconds, or in RFC 3339 with its zone."""
    text = query.get(name)
    if text is None:
        return default
    if text.isascii() and text.isdigit() and int(text[:15]) <= MAX_TIME_S and len(text) <= 15:
        return int(text)
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        raise BadRequest(
            f"{name}: expected unix seconds, or a time like 2026-11-01T00:00:00Z", param=name
        )
    return int(when.timestamp())
