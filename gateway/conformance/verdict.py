"""A line of the report: what was tried, whether it holds, and what was seen."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Verdict(StrEnum):
    """Whether a server does as it must."""

    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    UNKNOWN = "unknown"  # it can't be seen from here


class Line(Struct, frozen=True):
    """One thing that was tried."""

    name: str
    verdict: Verdict
    seen: str


def told(name: str, *, holds: bool, seen: str) -> Line:
    """A line of something that could be seen."""
    return Line(name, Verdict.PASS if holds else Verdict.FAIL, seen)


def unknown(name: str, why: str) -> Line:
    """A line of something that couldn't."""
    return Line(name, Verdict.UNKNOWN, why)
