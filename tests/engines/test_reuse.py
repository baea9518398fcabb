"""Which tokens of a prompt are found in the cache, and whose."""

from __future__ import annotations

import pytest

from tests.engines.conftest import EngineFactory
from tests.engines.helpers import ask, drive, random_prompt

ON_BOTH_BACKENDS = True

LENGTHS = [1, 3, 4, 5, 8, 17, 30, 41]
PROMPTS = {f"r{length}": random_prompt(length, seed=length) for length in LENGTHS}


@pytest.mark.parametrize(("length", "cached"), [(3, 0), (4, 3), (5, 4), (8, 7), (9, 8), (30, 28)])
def test_all_full_pages_but_the_last_token_are_reused(
    make_tiny: EngineFactory, length: int, cached: int
) -> None:
    """One token is always computed, in a copy of its page if that is shared."""
    engine = make_tiny()
    prompt = random_prompt(length, 1)
    assert drive(engine, ask("first", prompt)).cached("first") == 0
    assert drive(engine, ask("again", prompt)).cached("again") == cached


def test_an_answer_becomes_part_of_the_next_prefix(make_tiny: EngineFactory) -> None:
    """The next turn of a chat finds the pages of the turn before, answer included."""
    engine = make_tiny()
    prompt = PROMPTS["r5"]
    answer = drive(engine, ask("turn1", prompt, 12)).tokens("turn1")
    longer = [*prompt, *answer, 7, 7, 7, 7, 7]
    expected = (len(prompt) + len(answer) - 1) // 4 * 4  # the last token's KV was never needed
    assert drive(engine, ask("turn2", longer)).cached("turn2") == expected


def test_prefixes_are_shared_inside_a_domain_only(make_tiny: EngineFactory) -> None:
    """Another domain starts cold and gets the same answer; the first one still finds its own."""
    engine = make_tiny()
    prompt = PROMPTS["r30"]
    first = drive(engine, ask("a1", prompt, domain="a"))
    other = drive(engine, ask("b1", prompt, domain="b"))
    assert (first.cached("a1"), other.cached("b1")) == (0, 0)
    assert other.tokens("b1") == first.tokens("a1")
    assert drive(engine, ask("b2", prompt, domain="b")).cached("b2") == 28
    assert drive(engine, ask("a2", prompt, domain="a")).cached("a2") == 28


def test_an_uncomputed_chunk_is_not_shared(make_tiny: EngineFactory) -> None:
    """Aborted in the middle of its prefill, a seq leaves only the pages that were computed."""
    engine = make_tiny(max_batch_tokens=8, max_running=4)
    prompt = PROMPTS["r41"]
    engine.add(ask("x", prompt))
    engine.step()
    engine.step()
    engine.abort("x")
    assert drive(engine, ask("y", prompt)).cached("y") == 16
