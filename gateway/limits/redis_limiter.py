"""Counts in Redis or Valkey, for several processes: one call of one script is one step.

All keys have one hash tag, so that a cluster keeps them together: a request is counted under limits
of its key, its tenant and its model, which must be one step. Redis' own clock is the only one.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

from gateway.limits.limit import Take
from gateway.limits.limiter import LEASE_S, Held, LimiterDown, Verdict
from gateway.limits.redis_client import RedisClient
from gateway.limits.resp import Fault, Word

SCRIPT = (resources.files("gateway.limits") / "limiter.lua").read_text("utf-8")
BEAT_US = 5_000_000  # who hasn't been heard of for so long isn't counted as a process any more
AT_ONCE = 500  # places renewed by one call, which nobody else's may interrupt

Line = tuple[str, str, int, int, str]  # key, kind, cost or change, most, grant


@dataclass(frozen=True, slots=True)
class Beat:
    """Whether Redis still knew of this process, and how many it knows."""

    known: bool
    replicas: int


class RedisLimiter:
    """As Limiter has it. A call that takes longer than `timeout_s` raises LimiterDown."""

    is_together = True
    waits = True
    script = SCRIPT

    def __init__(
        self, redis: RedisClient, name: str, timeout_s: float, lease_us: int = int(LEASE_S * 1e6)
    ) -> None:
        self._redis = redis
        self._sha = hashlib.sha1(self.script.encode(), usedforsecurity=False).hexdigest()
        self._tag = f"{{{name}}}:"
        self._timeout_s = timeout_s
        self._lease_us = lease_us

    async def reserve(self, grant: str, takes: Sequence[Take]) -> Verdict:
        """As Limiter has it."""
        lines = [_line(grant, take, take.cost) for take in takes]
        admitted, *levels = await self._call("reserve", lines, self._lease_us)
        return Verdict(bool(admitted), takes, tuple(levels))

    async def look(self, takes: Sequence[Take]) -> Verdict:
        """As Limiter has it."""
        lines = [_line("", take, 0) for take in takes]
        _, *levels = await self._call("look", lines, self._lease_us)
        return Verdict(False, takes, tuple(levels))

    async def settle(self, grant: str, takes: Sequence[Take], used: Sequence[int]) -> None:
        """As Limiter has it."""
        changes = zip(takes, used, strict=True)
        lines = [_line(grant, take, take.change(amount)) for take, amount in changes]
        # What doesn't change needs no call; a bucket that empties meanwhile expires by itself.
        if lines := [line for line in lines if line[1] == "lease" or line[2]]:
            await self._call("settle", lines, self._lease_us)

    async def renew(self, held: Iterable[Held]) -> None:
        """As Limiter has it."""
        lines = [_line(place.grant, place.take, 1) for place in held]
        for start in range(0, len(lines), AT_ONCE):
            await self._call("renew", lines[start : start + AT_ONCE], self._lease_us)

    async def beat(self, process: str) -> Beat:
        """Say that a process lives. Raises LimiterDown."""
        known, replicas = await self._call("beat", [("processes", "lease", 1, 0, process)], BEAT_US)
        return Beat(bool(known), replicas)

    async def _call(self, what: str, lines: Sequence[Line], lease_us: int) -> list[int]:
        keys = [self._tag + line[0] for line in lines]
        told: list[Word] = [len(keys), *keys, what, lease_us]
        for line in lines:
            told += line[1:]
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._run(told)
        except TimeoutError:
            self._redis.drop()  # the server may be gone, without a word
            raise LimiterDown(f"no answer within {self._timeout_s:g} s") from None
        except (Fault, OSError) as fault:
            raise LimiterDown(str(fault) or type(fault).__name__) from None

    async def _run(self, told: Sequence[Word]) -> list[int]:
        try:
            found = await self._redis.call("EVALSHA", self._sha, *told)
        except Fault as fault:
            if not str(fault).startswith("NOSCRIPT"):
                raise
            # It was flushed, or another server took over. Nothing has run.
            found = await self._redis.call("EVAL", self.script, *told)
        if not (isinstance(found, list) and all(isinstance(one, int) for one in found)):
            raise Fault("an answer that isn't our script's")
        return found


def _line(grant: str, take: Take, amount: int) -> Line:
    limit = take.limit
    kind = "lease" if limit.is_place else "rate"
    return (limit.key, kind, amount, limit.most, grant)
