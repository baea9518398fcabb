"""A circuit breaker: whether a server is sent requests, decided by what became of those before.

```
closed ──failures in a row, or too large a share of them──► open
open ──after a while, twice as long each time──► half-open: one probe, and no request
half-open ──the probe was answered──► closed
half-open ──it wasn't──► open
```

Pure: times are seconds of any clock, and nothing is awaited. What is no failure of the server's (a
refused request, a client that left) is never told to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What may be sent."""

    CLOSED = "closed"  # requests
    OPEN = "open"  # nothing
    HALF_OPEN = "half-open"  # one probe is on its way


@dataclass(frozen=True, slots=True)
class Terms:
    """When it opens, and for how long."""

    in_a_row: int = 3
    share: float = 0.5  # of the answers of one window
    at_least: int = 20  # answers, before their share counts
    window_s: float = 30.0
    first_s: float = 5.0  # open for so long at first
    most_s: float = 60.0


class Breaker:
    """One server's."""

    __slots__ = ("_failed", "_in_a_row", "_open_s", "_since", "_total", "state", "terms", "until")

    def __init__(self, terms: Terms | None = None) -> None:
        self.terms = terms or Terms()
        self.state = State.CLOSED
        self.until = 0.0  # when it may be probed, while it is open
        self._open_s = self.terms.first_s
        self._forget(0.0)

    def succeed(self, now: float) -> None:
        """An answer came to its end. One that was asked for before it opened closes nothing."""
        if self.state is State.CLOSED:
            self._count(now)
            self._in_a_row = 0

    def fail(self, now: float) -> bool:
        """An answer failed, and it was the server's fault. Whether that has opened it."""
        if self.state is not State.CLOSED:
            return False
        self._count(now)
        self._failed += 1
        self._in_a_row += 1
        if self._in_a_row >= self.terms.in_a_row or self._is_large_share():
            self._open(now)
            return True
        return False

    def may_probe(self, now: float) -> bool:
        """Whether it has been open for long enough. It is half-open from then on: ask once."""
        if self.state is not State.OPEN or now < self.until:
            return False
        self.state = State.HALF_OPEN
        return True

    def probed(self, *, is_answered: bool, now: float) -> None:
        """How the probe ended; one that was sent while it was closed counts as any answer."""
        if self.state is State.CLOSED:
            if is_answered:
                self.succeed(now)
            else:
                self.fail(now)
        elif is_answered:
            self.state, self._open_s = State.CLOSED, self.terms.first_s
            self._forget(now)
        else:
            self._open_s = min(self._open_s * 2, self.terms.most_s)
            self._open(now)

    def _open(self, now: float) -> None:
        self.state, self.until = State.OPEN, now + self._open_s

    def _count(self, now: float) -> None:
        if now - self._since >= self.terms.window_s:
            in_a_row = self._in_a_row
            self._forget(now)
            self._in_a_row = in_a_row
        self._total += 1

    def _forget(self, now: float) -> None:
        self._since, self._total, self._failed, self._in_a_row = now, 0, 0, 0

    def _is_large_share(self) -> bool:
        terms = self.terms
        return self._total >= terms.at_least and self._failed >= terms.share * self._total
