"""Trials for bench_isolation: what a tenant can time at its socket, pair by pair.

Prompts are random token ids of five digits: each is new, and all of one length are bodies of one
length. So two probes differ in nothing but whether another had just sent the prefix of one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from benchmarks.bulkhead import MODEL_ID
from benchmarks.load import Connection, Target, ask, connect

PAGE = 16  # tokens, the engine's default
TAIL = 9  # tokens after the prefix, so that no prompt is a whole number of pages
FIVE_DIGITS = (10_000, 48_999)  # ids, all of them in the vocabulary
PATIENCE_S = 120.0
LOAD_PROMPT, LOAD_ANSWER = 24, 8  # tokens of a request of the background

Prompt = list[int]


class TrialFailed(Exception):
    """A request wasn't answered to its end. The message says how."""


class Prompts:
    """Random ones, no two alike."""

    def __init__(self, seed: str) -> None:
        self._chance = random.Random(seed)

    def new(self, tokens: int) -> Prompt:
        return [self._chance.randint(*FIVE_DIGITS) for _ in range(tokens)]

    def of_pages(self, pages: int) -> Prompt:
        """So many pages, and a tail."""
        return self.new(pages * PAGE + TAIL)

    def with_prefix_of(self, prompt: Prompt) -> Prompt:
        """As long, with the same pages and another tail."""
        return prompt[:-TAIL] + self.new(TAIL)


class Client:
    """One connection with one tenant's key, kept open."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._connection = Connection()

    async def first_token_ms(self, prompt: Prompt, max_tokens: int = 1) -> float:
        """From the request to its first event. Raises TrialFailed."""
        began, arrived = await self.times(prompt, max_tokens)
        return (arrived - began) * 1000

    async def times(self, prompt: Prompt, max_tokens: int = 1) -> tuple[float, float]:
        """When a request left, and when its first event came, in seconds. Raises TrialFailed."""
        if not self._connection.is_open:
            self._connection = await connect(self._target)
        request = self._target.request(_body(prompt, max_tokens))
        sample = await ask(self._connection, request, PATIENCE_S)
        if sample.error:
            raise TrialFailed(sample.error)
        return sample.began, sample.arrivals[0]

    def close(self) -> None:
        self._connection.close()


async def pair(
    sender: Client, prober: Client, pages: int, prompts: Prompts, chance: random.Random
) -> tuple[float, float]:
    """(candidate, control): the prober's times to the first token. Raises TrialFailed.

    Before the candidate the sender sends its prefix, before the control as long a prompt of its
    own. Which comes first is drawn.
    """
    times = {}
    for is_candidate in chance.sample((True, False), 2):
        probe = prompts.of_pages(pages)
        sent = prompts.with_prefix_of(probe) if is_candidate else prompts.of_pages(pages)
        await sender.first_token_ms(sent)
        times[is_candidate] = await prober.first_token_ms(probe)
    return times[True], times[False]


async def reuse(client: Client, pages: int, prompts: Prompts) -> tuple[float, float]:
    """(warm, cold): a tenant's own prompt for the second and for the first time."""
    prompt = prompts.of_pages(pages)
    cold = await client.first_token_ms(prompt)
    return await client.first_token_ms(prompt), cold


async def rank_of_sent(
    sender: Client, probers: Sequence[Client], pages: int, prompts: Prompts, chance: random.Random
) -> int:
    """How many of the candidates sent together were answered before the one that was sent before.

    Which of them that is, is drawn: chance alone makes every rank as likely. Raises TrialFailed.
    """
    candidates = [prompts.of_pages(pages) for _ in probers]
    chosen = chance.randrange(len(probers))
    await sender.first_token_ms(prompts.with_prefix_of(candidates[chosen]))
    found = await asyncio.gather(
        *(prober.times(prompt) for prober, prompt in zip(probers, candidates, strict=True))
    )
    arrived = [at for _, at in found]
    return sum(at < arrived[chosen] for at in arrived)


@asynccontextmanager
async def background(client: Client, share: float, prompts: Prompts) -> AsyncIterator[None]:
    """One stream after another that keep the engine busy for such a share of the time.

    After each answer the client waits in proportion to what it took, so no rate need be known.
    """
    stop = asyncio.Event()

    async def go_on() -> None:
        clock = asyncio.get_running_loop().time
        while not stop.is_set():
            began = clock()
            await client.times(prompts.new(LOAD_PROMPT), LOAD_ANSWER)
            await asyncio.sleep((clock() - began) * (1 - share) / share)

    running = asyncio.ensure_future(go_on()) if share else None
    try:
        yield
    finally:
        stop.set()
        if running:
            await running


def _body(prompt: Prompt, max_tokens: int) -> bytes:
    return msgspec.json.encode(
        {
            "model": MODEL_ID,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
        }
    )
