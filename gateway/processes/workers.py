"""Which workers there are: one serves, another may come up beside it, earlier ones finish.

Decisions alone: processes are started and asked by whoever is handed in, and time is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import structlog

from runtime.node.scaling import backoff_s, failures_after

log = structlog.get_logger()

MAX_FAILURES = 8
MAX_TRIES = 5  # for another to come up: one may be killed for what is no fault of its kind
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 10.0


class GatewayFailed(Exception):
    """The workers can't be kept running."""


class Process(Protocol):
    """A worker, from its parent's side."""

    def is_alive(self) -> bool: ...

    def is_serving(self) -> bool:
        """Whether it has said so."""
        ...

    def ending(self) -> str:
        """How a dead one ended."""
        ...

    def retire(self) -> None: ...

    def kill(self) -> None: ...


P = TypeVar("P", bound=Process)
P_co = TypeVar("P_co", bound=Process, covariant=True)


class Kind(Protocol[P_co]):
    """What workers are started with, such as one pair of certificates."""

    def start(self) -> P_co:
        """Raises OSError if no process can be had."""
        ...

    def taken(self) -> None:
        """It serves now, instead of what was before."""
        ...

    def refused(self, reason: str) -> None:
        """No worker came up with it; what was before goes on."""
        ...


@dataclass(slots=True)
class _Coming(Generic[P]):
    """What is to take over, and the worker that comes up with it; None between two tries."""

    kind: Kind[P]
    process: P | None = None
    failures: int = 0
    again_at: float = -math.inf


@dataclass(slots=True)
class _Leaving(Generic[P]):
    process: P
    until: float


class Workers(Generic[P]):
    """The workers of one gateway. `outlive_s` is how long one that retires may take to end."""

    def __init__(self, kind: Kind[P], outlive_s: Callable[[], float]) -> None:
        self._kind = kind
        self._outlive_s = outlive_s
        self._serving: P | None = None
        self._began = 0.0
        self._failures = 0
        self._again_at = 0.0
        self._coming: _Coming[P] | None = None
        self._leaving: list[_Leaving[P]] = []

    def __iter__(self) -> Iterator[P]:
        """Every process there is."""
        coming = self._coming.process if self._coming else None
        yield from (one for one in (self._serving, coming) if one is not None)
        yield from (leaving.process for leaving in self._leaving)

    @property
    def is_serving(self) -> bool:
        """Whether connections are taken now."""
        return self._serving is not None and self._serving.is_serving()

    def renew(self, kind: Kind[P], now: float) -> None:
        """Bring up another beside the one that serves, to take over from it."""
        if self._coming is not None and self._coming.process is not None:
            self._leave(self._coming.process, now)
        self._coming = _Coming(kind)
        self._try(self._coming, now)

    def turn(self, now: float) -> None:
        """See what has become of each, and do what that asks for. Raises GatewayFailed."""
        self._see_leaving(now)
        if self._coming is not None:
            self._see_coming(self._coming, now)
        self._see_serving(now)

    def _see_leaving(self, now: float) -> None:
        self._leaving = [one for one in self._leaving if one.process.is_alive()]
        for one in self._leaving:
            if now >= one.until:
                log.warning("gateway_worker_killed", reason="it retired, and didn't end")
                one.process.kill()
                one.until = math.inf

    def _see_coming(self, coming: _Coming[P], now: float) -> None:
        if coming.process is None:
            if now >= coming.again_at:
                self._try(coming, now)
        elif not coming.process.is_alive():
            self._note_failure(coming, coming.process.ending(), now)
        elif coming.process.is_serving():
            self._take_over(coming.kind, coming.process, now)

    def _try(self, coming: _Coming[P], now: float) -> None:
        try:
            coming.process = coming.kind.start()
        except OSError as fault:
            self._note_failure(coming, str(fault), now)

    def _note_failure(self, coming: _Coming[P], reason: str, now: float) -> None:
        coming.process = None
        coming.failures += 1
        if coming.failures >= MAX_TRIES:
            self._coming = None
            coming.kind.refused(reason)
            return
        log.warning("gateway_worker_not_up", reason=reason, failures=coming.failures)
        coming.again_at = now + backoff_s(coming.failures, BACKOFF_FIRST_S, BACKOFF_MAX_S)

    def _take_over(self, kind: Kind[P], process: P, now: float) -> None:
        if self._serving is not None:
            self._leave(self._serving, now)
        self._serving, self._kind, self._began = process, kind, now
        self._coming = None
        kind.taken()

    def _see_serving(self, now: float) -> None:
        if self._serving is not None and not self._serving.is_alive():
            self._note_crash(self._serving.ending(), now)
        if self._serving is None and now >= self._again_at:
            self._began = now
            try:
                self._serving = self._kind.start()
            except OSError as fault:
                self._note_crash(str(fault), now)

    def _note_crash(self, reason: str, now: float) -> None:
        self._serving = None
        self._failures = failures_after(self._failures, now - self._began)
        log.error("gateway_worker_crashed", reason=reason, failures=self._failures)
        if self._failures >= MAX_FAILURES:
            raise GatewayFailed(
                "the gateway's workers crash as soon as they start; see the log above"
            )
        self._again_at = now + backoff_s(self._failures, BACKOFF_FIRST_S, BACKOFF_MAX_S)

    def _leave(self, process: P, now: float) -> None:
        process.retire()
        self._leaving.append(_Leaving(process, now + self._outlive_s()))
