"""What the guard in an attached server has told, and whether requests may go there. Pure.

A guard looks, inside TensorRT-LLM, whether requests read only blocks of their own tenant. Its
launcher tells of it: a line of counters a second, and one for each violation as it comes. Requests
are sent to a server only while its guard is known to watch: before the first line, after a silence,
once it has failed, or where answers come and it counts no steps, nothing is sent there. What runs
there is ended where it runs on unwatched: if the guard has failed or counts no steps, or a silence
lasts longer than it takes to connect anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from engines.trtllm.salts import is_of
from gateway.errors import Refusal
from gateway.relay.upstream_errors import refusal_of

SILENT_S = 5.0  # without a line: nothing is sent there
UNWATCHED_S = 10.0  # without a line: what runs there is ended; before that we may connect anew
JUDGED_S = 0.9  # at least, between two looks at the steps
STRIKES = 3  # requests that were answered, and no step since they were sent


class BadLine(Exception):
    """A line that tells nothing that is known. Says why."""


class Counters(Struct, frozen=True):
    """What a guard says of itself, since its server's start, which `boot` names."""

    boot: str
    steps: int
    checked: int  # blocks
    violations: int
    poisoned: bool  # it has failed: whatever runs there may be a violation
    leaving: bool = False  # its launcher ends it once what runs there has ended


Violation = Mapping[str, Any]


def meaning(line: bytes) -> Counters | Violation | None:
    """What a line says; None: something that later launchers may tell. Raises BadLine.

    A violation that isn't told as it should be names no salt: it may be anybody's.
    """
    try:
        told = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadLine("a line that is no JSON") from None
    if not isinstance(told, dict):
        raise BadLine("a line that is no object")
    if "violation" in told:
        return _violation(told["violation"])
    if "boot" not in told:
        return None
    try:
        return msgspec.convert(told, Counters)
    except msgspec.ValidationError as fault:
        raise BadLine(f"counters that aren't: {fault}") from None


def _violation(told: object) -> Violation:
    if not isinstance(told, dict):
        return {}
    names = (told.get("salt"), told.get("salt_id"))
    return told if all(name is None or isinstance(name, str) for name in names) else {}


class Wait(Protocol):
    """What can be ended while it waits for an engine."""

    def end(self, fault: Refusal) -> None:
        """It raises this, instead of going on."""


class Flight:
    """One request at a guarded server, which can be stopped at any time. `wait`: what it is in."""

    __slots__ = ("_flights", "fault", "salt", "wait")

    def __init__(self, salt: str, flights: set[Flight]) -> None:
        self.salt = salt
        self._flights = flights
        self.wait: Wait | None = None
        self.fault: Refusal | None = None

    def stop(self) -> None:
        """No byte more of its answer is handed on."""
        if self.fault is None:
            self.fault = refusal_of("kv_integrity_abort", "")
            if self.wait is not None:
                self.wait.end(self.fault)

    def end(self) -> None:
        """It runs there no more."""
        self._flights.discard(self)

    def check(self) -> None:
        """Raises IntegrityAbort once it was stopped."""
        if self.fault is not None:
            raise self.fault


class Trust:
    """One server's guard, and the requests that run there. Times are seconds of any clock.

    `fault` says why nothing is sent there; "": it may be.
    """

    def __init__(self, now: float) -> None:
        self.flights: set[Flight] = set()
        self.last: Counters | None = None
        self.violations = 0  # that were told to us
        self.unwatched = 0  # requests that were ended since nobody watched them
        self.seq = 0  # of the last one, since `boot`
        self.trouble = ""  # why it can't be heard
        self.has_ended = False  # its launcher said so: it is sent nothing from then on
        self._heard_at = now
        self._steps, self._strikes = 0, 0
        self._judged_at = self._flat_since = now
        self.fault = ""
        self._is_blind = False  # whatever runs there, runs unwatched
        self.judge(now)

    def board(self, salt: str) -> Flight:
        """A request with that salt is sent there."""
        flight = Flight(salt, self.flights)
        self.flights.add(flight)
        if self._is_blind:  # since it was chosen
            flight.stop()
        return flight

    @property
    def is_new(self) -> bool:
        """Whether nothing is known of it yet: neither what it counts nor why it can't be heard."""
        return self.last is None and not self.trouble

    @property
    def boot(self) -> str:
        """Of the server's life that was told of last."""
        return self.last.boot if self.last else ""

    def counted(self, counters: Counters, asked_at: float, now: float) -> None:
        """A line of counters. `asked_at`: when the last request was sent that has an answer.

        Not when its bytes came: what a client reads slowly was computed long before.
        """
        if counters.boot != self.boot:
            self.seq = 0
            self._steps_are(counters.steps, now)
        elif counters.steps != self._steps:
            self._steps_are(counters.steps, now)
        elif now - self._judged_at >= JUDGED_S:
            self._judged_at = now
            if asked_at > self._flat_since:
                self._strikes, self._flat_since = self._strikes + 1, asked_at
        self.last, self._heard_at, self.trouble, self.has_ended = counters, now, "", False
        self.judge(now)

    def stood_still(self, seconds: float, now: float) -> None:
        """We ourselves did nothing for so long, and nothing was handed on: that's no silence.

        What was heard since isn't heard later than now.
        """
        self._heard_at = min(now, self._heard_at + seconds)

    def violated(self, violation: Violation) -> int:
        """Ends the requests that it concerns, and no other: how many."""
        seq = violation.get("seq")
        self.seq = seq if type(seq) is int and seq > self.seq else self.seq
        self.violations += 1
        return self._stop({one for one in self.flights if is_of(violation, one.salt)})

    def judge(self, now: float) -> str:
        """The fault, as of now. Ends what runs there, if nobody watches it any more."""
        self.fault = self._reason(now)
        last, is_stuck = self.last, self._strikes >= STRIKES
        is_lost = last is not None and now - self._heard_at > UNWATCHED_S
        self._is_blind = is_lost or is_stuck or (last is not None and last.poisoned)
        if self._is_blind:
            self.unwatched += self._stop(self.flights)
        return self.fault

    def _steps_are(self, steps: int, now: float) -> None:
        self._steps, self._strikes = steps, 0
        self._judged_at = self._flat_since = now

    def _reason(self, now: float) -> str:
        last, why = self.last, f": {self.trouble}" if self.trouble else ""
        if last is None:
            return f"its guard has yet to be heard{why}"
        if last.poisoned:
            return "its guard has failed: the server has to be started anew"
        if self.has_ended or last.leaving:
            return "its launcher ends it, or has another one begin"
        if now - self._heard_at > SILENT_S:
            return f"nothing was heard of its guard for {SILENT_S:g} s{why}"
        if self._strikes >= STRIKES:
            return "it answers, and its guard counts no steps"
        return ""

    def _stop(self, flights: set[Flight]) -> int:
        running = [flight for flight in flights if flight.fault is None]
        for flight in running:
            flight.stop()
        return len(running)
