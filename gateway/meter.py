"""What one answer used, counted as it passes."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.billing import Outcome, UsageSource
from gateway.clock import Clock
from gateway.prices import Usage
from gateway.relay.sse import Frame

FINISHED = {"stop": Outcome.COMPLETED, "length": Outcome.LENGTH}


US = 1_000_000


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds from a request's admission to its first token, and tokens a second after that."""

    ttft_s: float
    tokens_per_s: float | None


class Meter:
    """Counts. `seen` has left the engine; `delivered` was handed to the client's socket."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_at = clock.now_us()
        self._begin()

    def _begin(self) -> None:
        self._prompt: int | None = None
        self._cached = 0
        self._seen = 0
        self._delivered = 0
        self._is_exact = False  # our host counts along
        self._is_told = False  # so does another server; else we count its frames
        self.final: Usage | None = None
        self.finish_reason: str | None = None
        self.first_token_at: int | None = None  # microseconds UTC

    def see(self, frame: Frame) -> None:
        """Count a frame on its way to the client."""
        if frame.begins_anew:
            self._begin()
        if frame.counts is not None:
            self._is_exact = True
            self._prompt = frame.counts.prompt if self._prompt is None else self._prompt
            self._cached = frame.counts.cached or self._cached
            self._seen = frame.counts.output or self._seen
        elif frame.has_content:
            self._seen += 1
            self._is_told = False
        if frame.usage is not None:
            self._take(frame.usage)
        self.finish_reason = frame.finish_reason or self.finish_reason

    def _take(self, usage: Usage) -> None:
        """A total, or what another server has counted up to here: some tell it with each chunk.

        One that tells of fewer tokens than there were frames of text doesn't count along.
        """
        self.final = usage
        if self._is_exact:
            return
        self._prompt, self._cached = usage.input_tokens, usage.cached_input_tokens
        if usage.output_tokens >= self._seen:
            self._seen, self._is_told = usage.output_tokens, True

    def handed_over(self) -> None:
        """All that was seen is with the client now."""
        self._delivered = self._seen
        if self._seen and self.first_token_at is None:
            self.first_token_at = self._clock.now_us()

    def pace(self) -> Pace | None:
        """How fast the answer came, at its end. None if its tokens weren't seen one by one."""
        if self.first_token_at is None:
            return None
        running_us = self._clock.now_us() - self.first_token_at
        rate = (self._delivered - 1) * US / running_us if running_us > 0 else 0.0
        ttft_s = (self.first_token_at - self._began_at) / US
        return Pace(ttft_s, rate if self._delivered > 1 and rate else None)

    def so_far(self) -> Usage | None:
        """What the engine has told along the stream; None until it has told of the prompt."""
        if self._prompt is None:
            return Usage(0, 0, self._seen) if self._seen else None
        return Usage(self._prompt, self._cached, self._seen)

    def usage(self, outcome: Outcome) -> tuple[Usage | None, UsageSource]:
        """What to write down for this outcome: the engine's own total, or what was delivered."""
        if outcome in FINISHED.values():  # billed by the engine's total, or not at all
            return self.final, UsageSource.UPSTREAM_FINAL if self.final else UsageSource.NONE
        if self._prompt is None and not self._seen:
            return None, UsageSource.NONE
        is_counted = self._is_exact or self._is_told
        source = UsageSource.UPSTREAM_RUNNING if is_counted else UsageSource.GATEWAY_COUNT
        return Usage(self._prompt or 0, self._cached, self._delivered), source
