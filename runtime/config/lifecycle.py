"""Where a model is in its life: new, stable, deprecated, shut down. The moment is an argument."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct

from runtime.config.kinds import DayOrNone

Status = Literal["alpha", "beta", "stable", "deprecated"]


class Lifecycle(Struct, frozen=True, kw_only=True):
    """A model's stage and its dates. A date begins at 00:00 UTC."""

    status: Status = "stable"
    deprecated_at: DayOrNone = None  # from then on, clients should move on
    shutdown_at: DayOrNone = None  # from then on, requests are refused
    successor: str = ""  # the model to move to

    @staticmethod
    def faults(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """A model is deprecated before it is shut down, and since a day that clients are told."""
        deprecated, shut = found.get("deprecated_at"), found.get("shutdown_at")
        if deprecated and shut and deprecated > shut:
            yield "shutdown_at", "is before `deprecated_at`"
        if (shut or found.get("status") == "deprecated") and not deprecated:
            yield "deprecated_at", "is missing: say since when the model is deprecated"

    def status_at(self, now_s: float) -> Status:
        """The stage at a moment in Unix seconds."""
        return "deprecated" if _has_come(self.deprecated_at, now_s) else self.status

    def is_shut_at(self, now_s: float) -> bool:
        """Whether requests are refused at a moment in Unix seconds."""
        return _has_come(self.shutdown_at, now_s)


def midnight(day: datetime.date) -> datetime.datetime:
    """The first moment of a day, UTC."""
    return datetime.datetime.combine(day, datetime.time(), datetime.UTC)


def _has_come(day: datetime.date | None, now_s: float) -> bool:
    return day is not None and now_s >= midnight(day).timestamp()
