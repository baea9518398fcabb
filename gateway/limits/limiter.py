"""What counts: in this process, or for several of them together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gateway.limits.limit import Take

LEASE_S = 30.0  # a place is held so long without being renewed: by a process that was killed


class Verdict(NamedTuple):
    """Whether a request may come, and each limit's level: with it, or as it stays without.

    `takes` are as they were counted, which may be under this process's share of each limit.
    """

    admitted: bool
    takes: Sequence[Take]
    levels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """A grant's place under a limit of what runs at once."""

    grant: str
    take: Take


class Limiter(Protocol):
    """Counts. Each call is one atomic step, whatever else is called meanwhile.

    `grant` names the request, and its places by it. Raises LimiterDown.
    """

    is_together: bool  # whether it's counted with all processes that should
    waits: bool  # whether a call may give way to others, and so be cancelled

    async def reserve(self, grant: str, takes: Sequence[Take]) -> Verdict:
        """Take all of it, or, if one of them has no room, nothing."""

    async def look(self, takes: Sequence[Take]) -> Verdict:
        """Take nothing: each limit's level as it is."""

    async def settle(self, grant: str, takes: Sequence[Take], used: Sequence[int]) -> None:
        """Correct what was reserved to what was used, and free the grant's places."""

    async def renew(self, held: Iterable[Held]) -> None:
        """Hold these places for another lease, also those that were forgotten."""

    async def beat(self) -> bool:
        """Say that this process lives. Whether what runs has to be renewed, since it isn't known.

        Raises nothing.
        """


class LimiterDown(Exception):
    """Whoever counts can't be asked just now. The message says why."""
