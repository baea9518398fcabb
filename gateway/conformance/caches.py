"""Whether one tenant can notice, by cached tokens or by time, what another has sent."""

from __future__ import annotations

import random
import statistics

from gateway.conformance.backend import Backend, Said
from gateway.conformance.verdict import Line, told, unknown

PAIRS = 6
WORDS = 100  # of a prompt, five tokens each or so
CHANCE = 0.25  # of a hit: so little may be the beginning of an earlier prompt of b's own
FASTER = 0.8  # a prompt that was computed before takes less than this share of one that wasn't
NAMES = ("cross-tenant hits by cached tokens", "cross-tenant hits by time")


async def caches(backend: Backend) -> list[Line]:
    """Tenant b sends what a has sent, and as many prompts that are new."""
    chance = random.Random()  # noqa: S311 - prompts, no secrets
    await _send(backend, _words(chance), "b")  # what all prompts begin with, b has cached after it
    own: list[Said] = []
    seen: list[Said] = []
    new: list[Said] = []
    for _ in range(PAIRS):
        prompt = _words(chance)
        await _send(backend, prompt, "a")
        own.append(await _send(backend, prompt, "a"))
        for is_seen in chance.sample((True, False), 2):
            said = await _send(backend, prompt if is_seen else _words(chance), "b")
            (seen if is_seen else new).append(said)
    return [_by_tokens(own, seen, new), _by_time(own, seen, new)]


async def _send(backend: Backend, prompt: str, tenant: str) -> Said:
    return await backend.whole(prompt, tenant=tenant, max_tokens=1)


def _by_tokens(own: list[Said], seen: list[Said], new: list[Said]) -> Line:
    counts = [said.cached for said in (*own, *seen, *new)]
    if all(count is None for count in counts):
        return unknown(NAMES[0], "its usage tells no cached tokens")
    usual = max(said.cached or 0 for said in new)
    crossed = max((said.cached or 0) - usual for said in seen)
    again = max(said.cached or 0 for said in own)
    if crossed <= again * CHANCE:
        crossed = 0
    return told(
        NAMES[0],
        holds=crossed <= 0,
        seen=f"{max(crossed, 0)} tokens of a's in b's usage; {again} of its own when a asks again",
    )


def _by_time(own: list[Said], seen: list[Said], new: list[Said]) -> Line:
    """A hit is faster each time, and by far: by chance that is one in 64, and seldom by much."""
    ratios = [a.seconds / b.seconds for a, b in zip(seen, new, strict=True)]
    ratio = statistics.median(ratios)
    again = statistics.median(a.seconds / b.seconds for a, b in zip(own, new, strict=True))
    return told(
        NAMES[1],
        holds=not (max(ratios) < 1 and ratio < FASTER),
        seen=f"{ratio:.2f} of a new prompt's time for b; {again:.2f} when a asks again",
    )


def _words(chance: random.Random) -> str:
    """A prompt that nobody has sent before, from its first word on."""
    return " ".join(f"{chance.getrandbits(24):x}" for _ in range(WORDS))
