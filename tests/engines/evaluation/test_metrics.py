"""Divergence, agreement and perplexity, against figures worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from engines.embedded.evaluation.metrics import (
    Losses,
    Tally,
    agreements,
    divergences,
    log_probs,
    nats,
)

HALF_QUARTERS = np.log(np.array([[0.5, 0.25, 0.25]], np.float32))
QUARTERS_HALF = np.log(np.array([[0.25, 0.25, 0.5]], np.float32))


def test_probabilities_add_up_whatever_is_added_to_the_logits() -> None:
    """1e4 alone would overflow."""
    logits = np.array([[1.0, 2.0, 3.0], [10_001.0, 10_002.0, 10_003.0]], np.float32)
    found = np.exp(log_probs(logits))
    assert found.sum(axis=1) == pytest.approx([1, 1])
    assert found[0] == pytest.approx(found[1])
    assert found[0, 2] / found[0, 1] == pytest.approx(math.e)


def test_a_divergence_is_that_worked_out_by_hand() -> None:
    """0.5 ln(0.5/0.25) + 0.25 ln(1) + 0.25 ln(0.25/0.5) = 0.25 ln 2."""
    base, other = log_probs(HALF_QUARTERS), log_probs(QUARTERS_HALF)
    assert divergences(base, other) == pytest.approx([0.25 * math.log(2)])
    assert divergences(base, base) == [0]


def test_a_divergence_is_from_the_base() -> None:
    """KL isn't symmetric: 0.9 ln(0.9/0.5) + 0.1 ln(0.1/0.5), and the other way round."""
    sure, unsure = (log_probs(np.log(np.array([p], np.float32))) for p in ([0.9, 0.1], [0.5, 0.5]))
    assert divergences(sure, unsure) == pytest.approx([0.9 * math.log(1.8) + 0.1 * math.log(0.2)])
    assert divergences(unsure, sure) == pytest.approx(
        [0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)]
    )


def test_agreement_is_of_the_likeliest_token() -> None:
    """Row by row."""
    base = np.concatenate([HALF_QUARTERS, QUARTERS_HALF])
    other = np.concatenate([HALF_QUARTERS, HALF_QUARTERS])
    assert agreements(log_probs(base), log_probs(other)).tolist() == [True, False]


def test_perplexity_is_that_worked_out_by_hand() -> None:
    """Tokens of probability 1/2, 1/4 and 1/4: the geometric mean is 2 ** (5/3)."""
    logs = log_probs(np.repeat(HALF_QUARTERS, 3, axis=0))
    losses = Losses()
    losses.add(nats(logs[:1], np.array([0])))
    losses.add(nats(logs[1:], np.array([1, 2])))
    assert losses.perplexity == pytest.approx(2 ** (5 / 3))
    assert losses.tokens == 3


def test_no_tokens_have_no_perplexity() -> None:
    """Prompts without answers, for one."""
    assert Losses().perplexity is None


def test_a_tally_is_of_all_tokens_alike() -> None:
    """However many came at once."""
    tally = Tally()
    tally.add([0.0, 1.0, 2.0], 2)
    tally.add([5.0], 1)
    assert tally.mean == 2
    assert tally.agreement == 0.75
    assert tally.quantile(1.0) == 5
    assert tally.quantile(0.5) == 1.5
