"""The requests that were let in, until each has been settled, once, in whatever way it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from gateway.budgets.bounds import Bound
from gateway.catalog.catalog import Deployment
from gateway.limits.limit import Kind, Take
from gateway.limits.limiter import LEASE_S, Held, Limiter, LimiterDown, Verdict

BEAT_EVERY_S = 1.0

Ended = Sequence[tuple["Grant", Sequence[int]]]  # each with what it took of its limits
Further = Callable[["Grant", Deployment, Bound], Awaitable["Grant | None"]]


async def unlimited(grant: Grant, _: Deployment, __: Bound) -> Grant | None:
    """Wherever it goes on, it meets no limit."""
    return Grant(grant.gate, grant.id, ())


class Grant:
    """A request that was let in: what it holds until `settle`. Left unsettled, it gives all back.

    Also a request without any limit has one. `also` are those of the same request at other models,
    which are settled with it.
    """

    __slots__ = ("_further", "also", "gate", "id", "is_settled", "takes")

    def __init__(
        self, gate: Gate, id: str, takes: Sequence[Take], further: Further = unlimited
    ) -> None:
        self.gate = gate
        self.id = id
        self.takes = takes
        self.is_settled = False
        self.also: list[Grant] = []
        self._further = further

    async def __aenter__(self) -> Grant:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.settle(0, 0)

    async def at(self, other: Deployment, bound: Bound) -> Grant | None:
        """What it takes to go on at another model, or None; for `also`, or to be settled."""
        return await self._further(self, other, bound)

    async def settle(self, requests: int, tokens: int | None) -> None:
        """It was so many requests, 0 or 1, and tokens; None: as many as were reserved.

        Only the first time counts. Goes through even if the caller is cancelled meanwhile.
        """
        if self.is_settled:
            return
        ended = [one for one in (self, *self.also) if not one.is_settled]
        for one in ended:
            one.is_settled = True
        await self.gate.settle(
            [
                (one, [_used(take, requests, tokens) for take in one.takes])
                for one in ended
                if one.takes
            ]
        )

    def held(self) -> list[Held]:
        """Its places among those that run at once."""
        takes = self.takes
        return [Held(self.id, take) for take in takes if take.limit.is_place]


def _used(take: Take, requests: int, tokens: int | None) -> int:
    kind = take.limit.kind
    if kind is Kind.REQUESTS:
        return requests
    return tokens if kind is Kind.TOKENS and tokens is not None else take.amount


class Gate:
    """Lets requests in, and renews what they hold while they run."""

    def __init__(self, limiter: Limiter, renew_s: float = LEASE_S / 3) -> None:
        self._limiter = limiter
        self._renew_s = renew_s
        self._renewed_at = time.monotonic()
        self._grants: dict[str, Grant] = {}
        self._renewal: asyncio.Future[None] | None = None
        self._settling: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Grants that aren't settled."""
        return len(self._grants)

    @property
    def is_together(self) -> bool:
        """Whether it's counted with all processes that should."""
        return self._limiter.is_together

    async def enter(
        self, id: str, takes: Sequence[Take], further: Further = unlimited
    ) -> tuple[Verdict, Grant | None]:
        """Let one in, or don't. Raises LimiterDown."""
        if not takes:
            return Verdict(True, (), ()), Grant(self, id, takes, further)
        verdict = await self._reserve(id, takes)
        if not verdict.admitted:
            return verdict, None
        grant = self._grants[id] = Grant(self, id, takes, further)
        return verdict, grant

    async def _reserve(self, id: str, takes: Sequence[Take]) -> Verdict:
        """What is asked for by one who leaves meanwhile is given back, if it's had."""
        if not self._limiter.waits:
            return await self._limiter.reserve(id, takes)
        asking = asyncio.create_task(self._limiter.reserve(id, takes))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            self._beside(self._give_back(id, takes, asking))
            raise

    async def _give_back(
        self, id: str, takes: Sequence[Take], asking: asyncio.Task[Verdict]
    ) -> None:
        with suppress(LimiterDown):
            if (await asking).admitted:
                await self._limiter.settle(id, takes, [_used(take, 0, 0) for take in takes])

    async def look(self, takes: Sequence[Take]) -> Verdict:
        """Each limit's level as it is. Raises LimiterDown."""
        return await self._limiter.look(takes)

    async def settle(self, ended: Ended) -> None:
        """Ends a request's grants, all of them or none, for `Grant.settle`."""
        for grant, _ in ended:
            del self._grants[grant.id]
        if ended and self._limiter.waits:
            await asyncio.shield(self._beside(self._settle(ended)))
        else:
            await self._settle(ended)

    async def keep(self) -> None:
        """Renew what is held, in time and whenever it was forgotten, again and again."""
        while True:
            await asyncio.sleep(min(BEAT_EVERY_S, self._renew_s))
            await self.beat()

    async def beat(self) -> None:
        """Say that this process lives; renew what is held, if it's time or it was forgotten."""
        forgot = await self._limiter.beat()
        if forgot or time.monotonic() - self._renewed_at >= self._renew_s:
            self._renewed_at = time.monotonic()
            await self.renew()

    async def renew(self) -> None:
        """Hold all places for another lease."""
        held = [place for grant in self._grants.values() for place in grant.held()]
        if not held:
            return
        renewal = self._renewal = asyncio.get_running_loop().create_future()
        try:
            await self._limiter.renew(held)
        except LimiterDown:
            pass  # the next beat says more
        finally:
            self._renewal = None
            renewal.set_result(None)

    async def _settle(self, ended: Ended) -> None:
        for grant, used in ended:
            if self._renewal is not None:  # it must not come back
                await asyncio.shield(self._renewal)
            await self._limiter.settle(grant.id, grant.takes, used)

    def _beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Goes on whoever is cancelled."""
        task = asyncio.create_task(work)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task

    async def drain(self) -> None:
        """Returns once what is being settled has been."""
        await asyncio.gather(*self._settling, return_exceptions=True)
