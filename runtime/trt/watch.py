"""Whether a server that has served still does, and what is to be done if not. Pure.

A server may say that it is well and never answer again (its scheduler hangs), or answer for ever
that it isn't (its ranks are gone), or answer without a token. So what counts is one real token,
asked for now and then. A silence is a hang if it repeats itself; but not while the guard's steps
rise: then it computes for others, and what was asked for waits in its line.

The guard has counted a step before a token of it comes. Where a token comes and no step was
counted, nobody watches the blocks any more: that is as bad as a hang.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from engines.trtllm.state import State

MAX_MISSES = 2  # in a row, as for our own hosts
AGAIN_S = 2.0  # from a miss to the next ask: what is over by then was no fault for ever


class Heard(Enum):
    """What became of one ask for a token."""

    TOKEN = auto()
    FULL = auto()  # it is reached, and has no room
    SILENCE = auto()  # nothing came in time
    FAULT = auto()  # an error, no connection, or an answer without a token


class Answer(NamedTuple):
    """`reason` says what it was, if it was no token; `is_reached`: there was a connection."""

    heard: Heard
    reason: str = ""
    is_reached: bool = True


@dataclass(frozen=True, slots=True)
class Patience:
    """How long things may take, in seconds."""

    start_s: float = 1800.0  # to the first token: weights are loaded, and graphs captured
    every_s: float = 15.0  # from one ask for a token to the next
    within_s: float = 30.0  # for a token to come
    starved_s: float = 600.0  # without a token of ours while it computes for others
    drain_s: float = 30.0  # for answers that run, at an end in order


class End(NamedTuple):
    """Why a server must be replaced, and whether what runs there may end first."""

    reason: str
    drains: bool = False


class Watch:
    """What was seen of one server; its first token came at `now`.

    `guard` is what the guard said then; None where there is none to be.
    """

    def __init__(self, patience: Patience, guard: State | None, now: float) -> None:
        self._patience = patience
        self._guard = guard
        self._is_guarded = guard is not None
        self.misses = 0
        self.token_at = now

    def looked(self, guard: State | None) -> End | None:
        """The guard was looked at, between two tokens."""
        if not self._is_guarded:
            return None
        assert self._guard is not None
        last = self._guard
        if guard is None:
            return End("the guard's counters can't be read any more")
        if guard.boot != last.boot:
            return End("the guard has begun anew: its process was replaced")
        if guard.is_poisoned:
            return End("the guard has failed: it vouches for nothing any more")
        self._guard = guard
        if guard.violations:  # those from before its first token, too
            return End("the guard saw a block that wasn't the request's", drains=True)
        return None

    def asked(
        self, answer: Answer, since: State | None, guard: State | None, now: float
    ) -> End | None:
        """A token was asked for; `since` is what the guard had said before that."""
        end = self.looked(guard)
        if end is None:
            steps = guard.steps - since.steps if guard and since else 0
            end = self._heard(answer, steps, now)
        return end

    def _heard(self, answer: Answer, steps: int, now: float) -> End | None:
        if answer.heard is Heard.TOKEN and self._is_guarded and steps <= 0:
            return End("tokens come, and the guard counts no step: nobody watches the blocks")
        if answer.heard in (Heard.TOKEN, Heard.FULL):
            self.misses, self.token_at = 0, now
            return None
        if answer.heard is Heard.SILENCE and steps > 0:
            return self._starved(now)
        self.misses += 1
        return End(answer.reason) if self.misses >= MAX_MISSES else None

    def _starved(self, now: float) -> End | None:
        """It computes, and not for us: a long line, or one that doesn't move for us."""
        silent_s = now - self.token_at
        if silent_s < self._patience.starved_s:
            return None
        return End(f"no token of ours in {silent_s:.0f} s, though it computes")

    @property
    def wait_s(self) -> float:
        """Until the next ask: soon after a miss, so that a hang is known before long."""
        return min(AGAIN_S, self._patience.every_s) if self.misses else self._patience.every_s
