"""An engine reads a text in parts: opinions are as of the whole, and its pool is as before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from engines.api import EngineError
from engines.embedded.evaluation.reading import logits_of
from tests.engines.conftest import EngineFactory
from tests.engines.helpers import Reference, ask, drive, random_prompt

PAGE = 4


@pytest.mark.parametrize("part", [1, 7, 64, 500])
def test_opinions_are_those_of_transformers(
    make_tiny: EngineFactory, tiny_dir: Path, part: int
) -> None:
    """Longer than a step of the engine, and however it is cut."""

    engine = make_tiny(max_batch_tokens=64)
    tokens = random_prompt(150, 3)
    found = np.concatenate(list(logits_of(engine, PAGE, tokens, part)))
    expected = Reference(tiny_dir, torch.float32).logits(tokens)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_pages_come_back(make_tiny: EngineFactory) -> None:
    """After a whole text, and after one that was left in the middle; then requests run as ever."""
    engine = make_tiny(num_pages=40, prefix_cache=False)
    for _ in range(3):
        list(logits_of(engine, PAGE, random_prompt(100, 1)))
        begun = logits_of(engine, PAGE, random_prompt(100, 2), 30)
        next(begun)
        begun.close()
    assert engine.pool.num_free == 39
    answers = drive(engine, ask("x", random_prompt(20, 4), 4))
    assert len(answers.tokens("x")) == 4


def test_a_text_without_room_is_told(make_tiny: EngineFactory) -> None:
    """In tokens."""
    engine = make_tiny(num_pages=10)
    with pytest.raises(EngineError, match="no room for the KV of 100 tokens"):
        next(logits_of(engine, PAGE, random_prompt(100, 1)))
