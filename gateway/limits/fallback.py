"""Counts together with the other processes, and alone while that can't be done.

While Redis is down, slow or refuses, each process lets in its share of every limit, and nothing of
what fails closed. A request waits for Redis once, `timeout_s` at most: the first failure turns to
counting alone at once, for everybody, until a heartbeat gets through again.

What was reserved there and ends while it's down isn't corrected: a bucket fills again by itself, a
lease ends. What runs is renewed wherever is counted, so that it's known after each change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import structlog

from gateway.limits.alone import Alone
from gateway.limits.limit import Take
from gateway.limits.limiter import Held, LimiterDown, Verdict
from gateway.limits.local import LocalLimiter
from gateway.limits.redis_limiter import RedisLimiter

log = structlog.get_logger()

STEADY_S = 10.0  # who fails again so soon is given longer each time, up to PATIENCE_S
PATIENCE_S = 60.0


class Fallback:
    """As Limiter has it. It begins alone; `on_change` hears of each change of `is_together`."""

    waits = True

    def __init__(
        self,
        shared: RedisLimiter,
        process: str,
        least: Callable[[], int] = lambda: 1,
        local: LocalLimiter | None = None,
    ) -> None:
        """`process` names this one; there are at least so many of them."""
        self._shared = shared
        self._process = process
        self._least = least
        self._seen = 1  # processes, when that was known last
        self._alone = Alone(self.replicas, local)
        self._down_since: float | None = None
        self._up_since = -STEADY_S
        self._rest_s = 0.0  # a heartbeat isn't enough until it has been down so long
        self.is_together = False
        self.on_change: Callable[[bool], None] = _nobody

    def replicas(self) -> int:
        """Among so many each limit is shared while they can't count together."""
        return max(self._seen, self._least())

    async def reserve(self, grant: str, takes: Sequence[Take]) -> Verdict:
        """As Limiter has it."""
        if self.is_together:
            try:
                return await self._shared.reserve(grant, takes)
            except LimiterDown as fault:
                self._fall(fault)
        if closed := next((take.limit for take in takes if take.limit.fails_closed), None):
            raise LimiterDown(f"the {closed.scope}'s limit can't be counted")
        return await self._alone.reserve(grant, takes)

    async def look(self, takes: Sequence[Take]) -> Verdict:
        """As Limiter has it."""
        if self.is_together:
            try:
                return await self._shared.look(takes)
            except LimiterDown as fault:
                self._fall(fault)
        return await self._alone.look(takes)

    async def settle(self, grant: str, takes: Sequence[Take], used: Sequence[int]) -> None:
        """As Limiter has it. What can't be corrected is forgotten."""
        places = [take for take in takes if take.limit.is_place]
        freed = [0] * len(places)
        was_alone = grant in self._alone
        if was_alone:
            await self._alone.settle(grant, takes, used)
        else:  # its places may have been renewed here, and the other way round
            await self._alone.settle(grant, places, freed)
        if not self.is_together:
            return
        try:
            if not was_alone:
                await self._shared.settle(grant, takes, used)
            else:
                await self._shared.settle(grant, places, freed)
        except LimiterDown as fault:
            self._fall(fault)

    async def renew(self, held: Iterable[Held]) -> None:
        """As Limiter has it."""
        held = list(held)
        if self.is_together:
            try:
                await self._shared.renew(held)
            except LimiterDown as fault:
                self._fall(fault)
        if not self.is_together:
            await self._alone.renew(held)

    async def beat(self) -> bool:
        """As Limiter has it: also when it's counted together again."""
        try:
            beat = await self._shared.beat(self._process)
        except LimiterDown as fault:
            self._fall(fault)
            return True  # cheap: what runs is renewed here
        self._seen = beat.replicas
        was_together = self.is_together
        if not was_together and self._has_rested():
            self._rise()
        return not (was_together and beat.known)

    def _has_rested(self) -> bool:
        down_since = self._down_since
        return down_since is None or time.monotonic() - down_since >= self._rest_s

    def _rise(self) -> None:
        self.is_together = True
        self._up_since = time.monotonic()
        if self._down_since is not None:
            log.warning("limits_together_again", after_s=round(time.monotonic() - self._down_since))
        self._down_since = None
        self.on_change(True)

    def _fall(self, why: LimiterDown) -> None:
        was_together, self.is_together = self.is_together, False
        if self._down_since is None:  # told once
            now = self._down_since = time.monotonic()
            is_soon = now - self._up_since < STEADY_S
            self._rest_s = min(max(2 * self._rest_s, 1.0), PATIENCE_S) if is_soon else 0.0
            log.warning("limits_counted_alone", reason=str(why), share=f"1/{self.replicas()}")
        if was_together:
            self.on_change(False)


def _nobody(_: bool) -> None:
    """Nobody asked."""
