"""Choosing tokens: greedy, temperature, top_p, and draws that repeat."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from engines.api import Sampling
from engines.embedded.sampler import sample, uniform


def draw(logits: torch.Tensor, count: int = 1, **sampling: float) -> list[int]:
    """`count` draws at successive positions."""
    chosen = Sampling(1, **sampling)  # type: ignore[arg-type]
    tokens = [sample(logits[None].numpy(), [chosen], [position])[0] for position in range(count)]
    return [token for token in tokens if token is not None]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_choose_no_token(temperature: float, number: float) -> None:
    """Wherever they stand; the other rows choose as ever."""
    logits = torch.tensor([[0.0, 3.0, 2.9], [0.0, 3.0, 2.9], [number, 1.0, 2.0]])
    chosen = Sampling(1, temperature=temperature, top_p=0.1)
    assert sample(logits.numpy(), [chosen] * 3, [1, 2, 3]) == [1, 1, None]


def test_temperature_zero_takes_the_highest_logit() -> None:
    """Whatever the seed."""
    logits = torch.tensor([0.0, 3.0, 2.9])
    assert {draw(logits, temperature=0.0, seed=seed)[0] for seed in range(9)} == {1}


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    """The same pair gives the same number; another seed or position another one."""
    assert uniform(3, 14) == uniform(3, 14)
    assert len({uniform(seed, position) for seed in range(20) for position in range(20)}) == 400


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64 + 5])
def test_any_integer_is_a_seed(seed: int) -> None:
    """Seeds are taken modulo 2^64."""
    assert 0 <= uniform(seed, 0) < 1


def test_frequencies_follow_the_distribution() -> None:
    """4,000 draws are within 4 sigma of softmax(logits / temperature)."""
    logits = torch.tensor([1.0, 0.0, -1.0, 0.5])
    expected = torch.softmax(logits / 0.7, dim=0)
    seen = Counter(draw(logits, 4000, temperature=0.7, seed=1))
    for token, probability in enumerate(expected.tolist()):
        sigma = (probability * (1 - probability) * 4000) ** 0.5
        assert abs(seen[token] - probability * 4000) < 4 * sigma


@pytest.mark.parametrize(
    ("top_p", "allowed"), [(0.5, {0}), (0.51, {0, 1}), (0.8, {0, 1}), (0.95, {0, 1, 2})]
)
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p: float, allowed: set[int]) -> None:
    """Of 0.5, 0.3, 0.15, 0.05: what lies beyond the threshold is never drawn, the rest is."""
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert set(draw(logits, 300, temperature=1.0, top_p=top_p)) == allowed


def test_a_flat_distribution_outgrows_the_shortlist() -> None:
    """top_p over 5,000 equal tokens reaches past the first 512."""
    seen = draw(torch.zeros(5000), 300, temperature=1.0, top_p=0.9)
    assert len(set(seen)) > 200


def test_a_tiny_temperature_is_greedy() -> None:
    """No overflow on the way."""
    assert draw(torch.tensor([1.0, 90.0, 89.0]), 20, temperature=1e-6) == [1] * 20


def test_rows_do_not_disturb_each_other() -> None:
    """A row's token is the same alone and between others."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 100, generator=generator)
    samplings = [Sampling(1, temperature=t, top_p=p, seed=9) for t, p in
                 [(0.0, 1.0), (1.0, 1.0), (2.0, 0.9), (0.5, 0.5)]]  # fmt: skip
    together = sample(logits.numpy(), samplings, [5, 6, 7, 8])
    alone = [sample(logits[i : i + 1].numpy(), [samplings[i]], [5 + i])[0] for i in range(4)]
    assert together == alone
