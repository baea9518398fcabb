"""Counts this process's share of limits that others let requests in under, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gateway.limits.limit import Take
from gateway.limits.limiter import Held, Verdict
from gateway.limits.local import LocalLimiter


class Alone:
    """As Limiter has it. Each limit is shared among `replicas`, as many as there are now."""

    is_together = True
    waits = False

    def __init__(self, replicas: Callable[[], int], local: LocalLimiter | None = None) -> None:
        self._replicas = replicas
        self._local = LocalLimiter() if local is None else local
        self._shares: dict[str, Sequence[Take]] = {}  # what grants took, until they are settled

    def __contains__(self, grant: str) -> bool:
        return grant in self._shares

    async def reserve(self, grant: str, takes: Sequence[Take]) -> Verdict:
        """As Limiter has it."""
        ours = self._ours(takes)
        verdict = await self._local.reserve(grant, ours)
        if verdict.admitted:
            self._shares[grant] = ours
        return verdict

    async def look(self, takes: Sequence[Take]) -> Verdict:
        """As Limiter has it."""
        return await self._local.look(self._ours(takes))

    async def settle(self, grant: str, takes: Sequence[Take], used: Sequence[int]) -> None:
        """As Limiter has it, also for places that were only renewed here."""
        await self._local.settle(grant, self._shares.pop(grant, takes), used)

    async def renew(self, held: Iterable[Held]) -> None:
        """As Limiter has it."""
        await self._local.renew(held)

    async def beat(self) -> bool:
        """As Limiter has it: nothing is forgotten here."""
        return False

    def _ours(self, takes: Sequence[Take]) -> Sequence[Take]:
        replicas = self._replicas()
        return [take.share(replicas) for take in takes] if replicas > 1 else takes
