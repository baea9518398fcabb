"""One limit, as arithmetic on whole numbers: nothing here knows the time or keeps a state.

Requests and tokens a minute are a bucket each, kept as GCRA (the generic cell rate algorithm) has
it: one time at which it will be full again. Its *level* is how far off that is, in microseconds;
what a request takes has a *cost* in the same unit, and it may come if level + cost <= `most`. Of
what runs at once the level is their number, and a cost is 1. So one rule is all that a limiter has
to know, and it needs no division: that is done here, in integers of any size.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

MINUTE_US = 60_000_000
CEILING_US = 365 * 24 * 60 * MINUTE_US  # as much as a bucket ever owes; below 2^53 with the time
BURST_LEAST = 10  # requests at once, whatever a sixth of the limit is


class Kind(StrEnum):  # as texts they are found in a dictionary faster, several times a request
    """What is counted."""

    REQUESTS = "rpm"
    TOKENS = "tpm"
    CONCURRENT = "concurrent"


@dataclass(frozen=True, slots=True)
class Limit:
    """So many a minute, or at once. `key` says of whom, `scope` as a client is told it.

    `burst` is the most that may come at once after silence. A request may need a minute's tokens,
    so that is what a bucket of tokens holds. Requests are one each: theirs is ten seconds' worth,
    so that no minute has many more than the limit. `most` is the level that isn't passed.
    """

    key: str
    kind: Kind
    number: int
    scope: str = "key"  # "key", "project", "tenant" or "model"
    model: str = ""  # "": all of them together
    fails_closed: bool = False  # without its shared count nothing is admitted
    is_place: bool = field(init=False, compare=False)
    burst: int = field(init=False, compare=False)
    most: int = field(init=False, compare=False)
    one: Take = field(
        init=False, compare=False, repr=False
    )  # what a request takes that isn't tokens

    def __post_init__(self) -> None:
        burst = most = self.number
        if self.kind is Kind.REQUESTS:
            burst = min(self.number, max(BURST_LEAST, self.number // 6))
            most = burst * -(-MINUTE_US // self.number)
        elif self.kind is Kind.TOKENS:
            most = MINUTE_US
        object.__setattr__(self, "is_place", self.kind is Kind.CONCURRENT)
        object.__setattr__(self, "burst", burst)
        object.__setattr__(self, "most", most)
        object.__setattr__(self, "one", Take(self, 1))

    def cost(self, amount: int) -> int:
        """Of so many: microseconds of this limit's time, rounded up, or places."""
        return amount if self.is_place else -(-amount * MINUTE_US // self.number)

    def left(self, level: int) -> int:
        """How many may still come at this level."""
        room = self.most - level
        if room <= 0:
            return 0
        if self.is_place:
            return room
        if self.kind is Kind.TOKENS:
            return room * self.number // MINUTE_US
        return room // self.one.cost

    def share(self, replicas: int) -> Limit:
        """What each of so many processes may let in by itself: one at least."""
        return replace(self, number=max(self.number // replicas, 1))


class Take:
    """What one request wants of one limit, and its cost."""

    __slots__ = ("amount", "cost", "limit")

    def __init__(self, limit: Limit, amount: int) -> None:
        self.limit = limit
        self.amount = amount
        self.cost = limit.cost(amount)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Take):
            return NotImplemented
        return (self.limit, self.amount) == (other.limit, other.amount)

    def __hash__(self) -> int:
        return hash((self.limit, self.amount))

    def __repr__(self) -> str:
        return f"Take({self.limit!r}, {self.amount})"

    @property
    def can_ever_be(self) -> bool:
        """Whether waiting could help."""
        return self.amount <= self.limit.burst

    def change(self, used: int) -> int:
        """From what was reserved to what was used: negative is given back."""
        return 0 if used == self.amount else self.limit.cost(used) - self.cost

    def share(self, replicas: int) -> Take:
        """Of a process's share. Who wants more than all of it takes all, and owes the rest."""
        limit = self.limit.share(replicas)
        return Take(limit, min(self.amount, limit.burst))


def wait_us(take: Take, level: int) -> int:
    """Until it fits, if nobody else comes; 0 or less: it does.

    Nobody knows when a place gets free: 1.
    """
    over = level + take.cost - take.limit.most
    return min(over, 1) if take.limit.is_place else over


def changed(level: int, change: int) -> int:
    """A level after a change: never below empty, nor above what can be kept."""
    return min(max(level + change, 0), CEILING_US)
