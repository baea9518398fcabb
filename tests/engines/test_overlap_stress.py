"""The tiny engine with steps in their real thread, while requests come, go and give way."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engines.api import Request
from tests.engines.books import check_books, tables_of
from tests.engines.conftest import EngineFactory
from tests.engines.helpers import Answers, ask, drive, needs_native, random_prompt
from tests.stack import SOAK

STEPS = 20_000 if SOAK else 400
FP8 = {"kv_dtype": "fp8_e4m3", "speculation": 3, "threads": 2}
BEGINNINGS = [random_prompt(16, seed) for seed in range(3)]


def request(number: int, draws: bool) -> Request:
    """One of a hundred: a few beginnings, some of them whole pages and nothing else."""
    chance = random.Random(number % 100)
    prompt = chance.choice(BEGINNINGS)[: chance.choice([7, 8, 12, 16])]
    prompt = prompt + random_prompt(chance.choice([0, 0, 3, 30]), number % 100)
    domain, max_tokens = chance.choice("abc"), chance.randint(1, 24)
    temperature = chance.choice([0.0, 0.8]) if draws else 0.0
    chosen = {"temperature": temperature, "seed": number % 100}
    return ask(f"r{number}", prompt, max_tokens, domain=domain, **chosen)


# Of torch, whose bits depend on the batch, no draw is asked: a number near a border could fall on
# its other side.
CASES = [
    pytest.param("torch", {"kv_dtype": "float32"}, False, id="torch, float32"),
    pytest.param("torch", {"kv_dtype": "bfloat16"}, False, id="torch, bfloat16"),
    pytest.param("native", {}, True, id="native, bfloat16", marks=needs_native),
    # FP8's pages are twice as many in the same memory.
    pytest.param("native", FP8 | {"num_pages": 20}, True, id="native, FP8", marks=needs_native),
]


@pytest.mark.parametrize(("backend", "options", "draws"), CASES, indirect=["backend"])
def test_answers_are_the_same_whatever_happens_to_others(
    make_tiny: EngineFactory, options: dict[str, Any], draws: bool
) -> None:
    """Aborts and preemptions at any time, in a pool that is always full; no check ever fires."""
    chance = random.Random(1)
    engine = make_tiny(**{"num_pages": 40, "max_running": 6, "max_batch_tokens": 24} | options)
    alone = {name: value for name, value in options.items() if name == "kv_dtype"}
    reader = make_tiny(**alone, prefix_cache=False)
    clean = {number: drive(reader, request(number, draws)) for number in range(100)}
    answers, number, aborted = Answers(), 0, set[str]()
    for _ in range(STEPS):
        while len(engine._seqs) < 9:
            engine.add(request(number, draws))
            number += 1
        if chance.random() < 0.15:
            id = chance.choice(list(engine._seqs))
            engine.abort(id)
            aborted.add(id)
        if engine.scheduler.running and chance.random() < 0.1:
            engine.scheduler._preempt(chance.choice(engine.scheduler.running))
        answers.take(engine.step())
    while engine.has_work():
        answers.take(engine.step())
    for n in range(number):
        told, whole = answers.tokens(f"r{n}"), clean[n % 100].tokens(f"r{n % 100}")
        assert told == (whole[: len(told)] if f"r{n}" in aborted else whole)
    assert engine.stats().tag_mismatches == 0
    assert engine.stats().preempted > 0
    check_books(engine.pool, tables_of(engine))
