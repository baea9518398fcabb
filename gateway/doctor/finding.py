"""One thing that was looked at, and what there is to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from runtime.config.place import Place
from runtime.config.report import Report
from runtime.settings import Settings

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`text` says how it is; `todo` what to do, if there is anything."""

    check: str
    level: Level
    text: str
    todo: str = ""


@dataclass(frozen=True, slots=True)
class Patient:
    """What is looked at. No settings: the config file has faults, which `report` tells."""

    place: Place
    settings: Settings | None
    report: Report = field(default_factory=Report)


Check = Callable[[Patient], Iterable[Finding]]


def ok(check: str, text: str) -> Finding:
    """As it should be."""
    return Finding(check, "ok", text)


def warning(check: str, text: str, todo: str) -> Finding:
    """It works, and may not for long or not well."""
    return Finding(check, "warning", text, todo)


def error(check: str, text: str, todo: str) -> Finding:
    """It doesn't work."""
    return Finding(check, "error", text, todo)
