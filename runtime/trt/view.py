"""How a launched server does, as its launcher tells it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class TrtState(StrEnum):
    """Where a server is in its life, or between two."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    WAITING = "waiting"  # for its next start, after a failure
    FAILED = "failed"  # so often in a row that it is tried seldom
    STOPPED = "stopped"


class GuardView(Struct, frozen=True, kw_only=True):
    """What the guard says of itself."""

    boot: str
    steps: int
    checked: int  # blocks
    violations: int
    poisoned: bool


class View(Struct, frozen=True, kw_only=True):
    """One launched server. Moments are unix seconds; 0: never, or not now."""

    model: str
    url: str  # where it answers
    state: TrtState
    since: float
    reason: str = ""  # why it was ended last, or can't start
    pid: int = 0
    starts: int = 0
    failures: int = 0  # in a row
    retry_at: float = 0.0
    token_at: float = 0.0  # when the last token came that was asked for
    said: str = ""  # its last complaint
    guard: GuardView | None = None
    followers: int = 0  # of its events
