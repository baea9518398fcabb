"""Requests that wait for one model: each tenant's in the order in which they came."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Iterator

from gateway.relay.fairness import Shares, cost_of
from gateway.relay.place import Place


class Turn:
    """A request's place in the order in which they came, its own for as long as it lasts.

    `tokens`: no fewer than it takes in all. `ahead`: what it is charged for when it gets a place,
    until it is known better. It isn't given a place that it `tried`. One of a session prefers the
    session's place.
    """

    __slots__ = (
        *("_charged", "_shares", "ahead", "had_place", "number", "session"),
        *("tenant", "tokens", "tried", "until", "weight"),
    )

    def __init__(
        self,
        shares: Shares,
        number: int,
        tokens: int,
        tenant: str,
        weight: int,
        ahead: int,
    ) -> None:
        self._shares = shares
        self._charged = 0
        self.number = number
        self.tokens = tokens
        self.tenant = tenant
        self.weight = weight
        self.ahead = ahead
        self.session = ""
        self.tried: tuple[Place, ...] = ()
        self.had_place = False
        self.until: float | None = None  # the loop's time; set when it first waits

    def count(self, input_tokens: int, output_tokens: int) -> None:
        """What it has been given by now: a long answer pays while it runs."""
        self._pay(cost_of(input_tokens, output_tokens))

    def enter(self) -> None:
        """It has a place. One that lost another has paid."""
        if not self.had_place:
            self.had_place = True
            self._pay(self.ahead)

    def _pay(self, cost: int) -> None:
        if cost != self._charged:
            self._shares.charge(self.tenant, cost - self._charged, self.weight)
            self._charged = cost


class Waiter:
    """A turn that is waited for."""

    __slots__ = ("future", "turn")

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.future: asyncio.Future[Place] = asyncio.get_running_loop().create_future()


def _number(waiter: Waiter) -> int:
    return waiter.turn.number


class Queue:
    """All that wait. `next` is of the tenant whose share was least until now."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._by_tenant: dict[str, list[Waiter]] = {}
        self._length = 0
        self.tokens = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Waiter]:
        for waiters in self._by_tenant.values():
            yield from waiters

    def next(self) -> Waiter:
        """Whose turn it is; there must be one."""
        heads = (waiters[0] for waiters in self._by_tenant.values())
        return min(heads, key=lambda head: (self._shares.had(head.turn.tenant), head.turn.number))

    def join(self, waiter: Waiter) -> None:
        """One more. It stands by its number among its tenant's."""
        insort(self._by_tenant.setdefault(waiter.turn.tenant, []), waiter, key=_number)
        self._length += 1
        self.tokens += waiter.turn.tokens

    def drop(self, waiter: Waiter) -> None:
        """It waits no longer; nothing for one that isn't here."""
        waiters = self._by_tenant.get(waiter.turn.tenant, [])
        at = bisect_left(waiters, waiter.turn.number, key=_number)
        if at == len(waiters) or waiters[at] is not waiter:
            return
        del waiters[at]
        if not waiters:
            del self._by_tenant[waiter.turn.tenant]
        self._length -= 1
        self.tokens -= waiter.turn.tokens

    def longer_than(self, turn: Turn) -> Waiter | None:
        """Who makes room for a newcomer where all is full: the last of the tenant with the most.

        None if the newcomer's own would then be as many, by their weights. A request that had a
        place and lost it stays.
        """
        own = self._by_tenant.get(turn.tenant, ())
        share = (len(own) + 1) / turn.weight
        waiters = max(
            self._by_tenant.values(),
            key=lambda waiters: len(waiters) / waiters[0].turn.weight,
            default=[],
        )
        if not waiters or len(waiters) / waiters[0].turn.weight <= share:
            return None
        for waiter in reversed(waiters):
            if not waiter.turn.had_place and not waiter.future.done():
                return waiter
        return None
