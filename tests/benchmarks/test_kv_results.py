"""Paired differences between kinds of pages."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.kv_results import Results


def results_of(base: list[float], other: list[float]) -> Results:
    results = Results("base")
    for kind, values in (("base", base), ("other", other)):
        for value in values:
            results.add("metric", kind, value)
    return results


def test_what_all_texts_have_in_common_makes_no_interval_wider() -> None:
    """Texts differ by far more than the kinds do."""
    chance = np.random.default_rng(1)
    base = chance.normal(0, 100, 400)
    found = results_of(base.tolist(), (base + chance.normal(0.5, 1, 400)).tolist())
    difference = found.difference("metric", "other")
    assert difference.low < 0.5 < difference.high
    assert difference.high - difference.low == pytest.approx(2 * 1.96 / 20, rel=0.2)
    own = found.mean("metric", "other") - found.mean("metric", "base")
    assert own == pytest.approx(difference.mean)


def test_the_interval_holds_the_true_difference_as_often_as_it_says() -> None:
    """300 experiments of 40 texts: about 95 in a hundred, by a seed that stays."""
    chance = np.random.default_rng(2)
    held = 0
    for _ in range(300):
        other = chance.normal(1, 2, 40)
        difference = results_of([0.0] * 40, other.tolist()).difference("metric", "other")
        held += difference.low <= 1 <= difference.high
    assert 0.91 < held / 300 < 0.98


def test_of_a_single_text_there_is_no_interval() -> None:
    """Its difference is told, and nothing about others."""
    difference = results_of([1.0], [True]).difference("metric", "other")
    assert difference.mean == 0
    assert math.isnan(difference.low)
    assert math.isnan(difference.high)


def test_kinds_that_read_other_texts_are_not_compared() -> None:
    """Paired means the same number of texts at least."""
    with pytest.raises(ValueError, match="other read 1 texts, base 2"):
        results_of([1.0, 2.0], [1.0]).difference("metric", "other")
