"""A clock that stands still until it is told."""

from __future__ import annotations

US = 1_000_000
NOON_S = 1_800_000_000


class StillClock:
    def __init__(self, seconds: int = NOON_S) -> None:
        self.us = seconds * US

    def now_us(self) -> int:
        return self.us

    def pass_s(self, seconds: float) -> None:
        self.us += int(seconds * US)
