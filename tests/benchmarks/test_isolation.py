"""The trials ask what they say: candidate and control differ in the sender's prefix alone."""

from __future__ import annotations

import random
from typing import cast

from benchmarks.isolation import PAGE, TAIL, Client, Prompt, Prompts, pair, rank_of_sent, reuse

PAGES = 3


class Recorder:
    """Stands for a client: remembers what was asked, and answers after as many ms as it is told."""

    def __init__(self, asked: list[tuple[str, Prompt]], name: str, takes_ms: float = 5.0) -> None:
        self.asked, self.name, self.takes_ms = asked, name, takes_ms

    async def first_token_ms(self, prompt: Prompt, max_tokens: int = 1) -> float:
        self.asked.append((self.name, prompt))
        return self.takes_ms

    async def times(self, prompt: Prompt, max_tokens: int = 1) -> tuple[float, float]:
        return 0.0, await self.first_token_ms(prompt)


def client(asked: list[tuple[str, Prompt]], name: str, takes_ms: float = 5.0) -> Client:
    return cast(Client, Recorder(asked, name, takes_ms))


def shared(one: Prompt, other: Prompt) -> int:
    """Tokens that both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


async def test_a_pair_differs_in_what_was_sent_before_alone() -> None:
    orders = set()
    for seed in range(10):
        asked: list[tuple[str, Prompt]] = []
        a, b = client(asked, "a"), client(asked, "b")
        assert await pair(a, b, PAGES, Prompts(f"{seed}"), random.Random(seed)) == (5.0, 5.0)
        assert [name for name, _ in asked] == ["a", "b", "a", "b"]
        assert {len(prompt) for _, prompt in asked} == {PAGES * PAGE + TAIL}
        (_, sent), (_, probe), (_, sent_later), (_, probe_later) = asked
        prefixes = [shared(sent, probe), shared(sent_later, probe_later)]
        assert sorted(prefixes) == [0, PAGES * PAGE]
        assert shared(probe, probe_later) == 0, "the prober's own cache never helps"
        orders.add(prefixes[0] > 0)
    assert orders == {True, False}, "which comes first is drawn"


async def test_own_reuse_is_the_same_prompt_twice() -> None:
    asked: list[tuple[str, Prompt]] = []
    await reuse(client(asked, "b"), PAGES, Prompts("1"))
    assert asked[0] == asked[1]


async def test_of_candidates_one_was_sent_before_and_its_rank_is_told() -> None:
    chosen, ranks = set(), set()
    for seed in range(40):
        asked: list[tuple[str, Prompt]] = []
        probers = [client(asked, str(number), takes_ms=number) for number in range(4)]
        rank = await rank_of_sent(
            client(asked, "a"), probers, PAGES, Prompts(f"{seed}"), random.Random(seed)
        )
        sent, *candidates = (prompt for _, prompt in asked)
        known = [shared(sent, prompt) for prompt in candidates]
        assert sorted(known) == [0, 0, 0, PAGES * PAGE]
        assert rank == known.index(PAGES * PAGE), "here the first asked is the first answered"
        chosen.add(known.index(PAGES * PAGE))
        ranks.add(rank)
    assert chosen == ranks == set(range(4))


def test_prompts_of_one_length_are_bodies_of_one_length() -> None:
    prompts = Prompts("1")
    texts = {len(str(prompts.of_pages(PAGES))) for _ in range(50)}
    assert len(texts) == 1
