"""What is launched: where it listens, which command it is, in which environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runtime.trt.bind import Bind
from runtime.trt.child import Command

GUARD_DIR = "BULKHEAD_GUARD_DIR"


@dataclass(frozen=True, slots=True)
class Plan:
    """One server, however often it is started."""

    model: str  # the model's id
    name: str  # by which the server knows it
    bind: Bind
    command: Callable[[Path | None], Command]  # of a start, which has this folder for its guard
    guards: Path | None = None  # the folder of those folders; None: no guard
    warden_env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()  # that its output must not tell
