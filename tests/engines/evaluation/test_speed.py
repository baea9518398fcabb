"""Timing: who is timed when, and what of it counts. The clock is the test's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engines.api import EngineError, Output, Request
from engines.embedded.evaluation import speed
from engines.embedded.evaluation.speed import DECODED, REQUESTS, answer, measure, turns
from tests.engines.conftest import EngineFactory
from tests.engines.helpers import random_prompt


def steps_of(engine: Any) -> Callable[[], float]:
    """A clock that strikes once a step."""
    return lambda: float(engine.stats().steps)


def test_prompts_and_answers_are_timed_apart(make_plain: EngineFactory) -> None:
    """Two prompts of 40 in steps of 20: four steps, then a token for each of them in every step."""
    engine = make_plain(max_batch_tokens=20, max_running=8, prefix_cache=False)
    prompts = [tuple(random_prompt(40, seed)) for seed in (1, 2)]
    rates = answer(engine, prompts, steps_of(engine))
    # The first request decodes while the second one reads: a step or two more.
    assert 80 / 6 < rates.prefill <= 80 / 4
    assert rates.decode == pytest.approx(2)


def test_an_end_token_ends_no_answer_while_it_is_timed(make_plain: EngineFactory) -> None:
    """Whatever the model says, all engines say as much."""
    engine = make_plain(prefix_cache=False)
    engine.scheduler.eos_token_ids = frozenset(range(300))
    answer(engine, [tuple(random_prompt(8, 1))], steps_of(engine))
    assert engine.stats().output_tokens == DECODED


def test_a_request_that_is_stopped_gives_no_figure() -> None:
    """A check that fails is told instead."""

    class Stopped:
        scheduler = type("S", (), {"eos_token_ids": frozenset()})()

        def __init__(self) -> None:
            self.asked: list[Request] = []

        def add(self, request: Request) -> None:
            self.asked.append(request)

        def has_work(self) -> bool:
            return True

        def step(self) -> list[Output]:
            return [Output(self.asked[0].id, error=EngineError("why"))]

    with pytest.raises(EngineError, match="stopped while it was timed: why"):
        answer(Stopped(), [(1, 2)])  # type: ignore[arg-type]


def test_engines_take_turns_and_another_begins_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are asked the same, and the median counts."""
    asked: list[tuple[str, int, Any]] = []
    rates = iter(range(1, 100))

    def answered(engine: str, prompts: Any, *_: Any) -> speed.Rates:
        asked.append((engine, len(prompts), tuple(prompts)))
        rate = float(next(rates))
        return speed.Rates(rate, rate * 10)

    monkeypatch.setattr(speed, "answer", answered)
    told: list[None] = []
    names: Any = {"a": "a", "b": "b", "c": "c"}
    found = measure(names, [(1,), (2,)], 3, lambda: told.append(None))
    assert len(told) == turns(3, 3) == 3 * 3 * len(REQUESTS)
    timed = [engine for engine, _, _ in asked[3:]]
    assert "".join(timed) == "abcabc" + "bcabca" + "cabcab"
    for start in range(3, len(asked), 3):
        assert len({asked[start + i][1:] for i in range(3)}) == 1, "the same prompts"
    # "a" had the first, third and second turn of each round with one request
    assert found["a"][1] == speed.Rates(12.0, 120.0)
