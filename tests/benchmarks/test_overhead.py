"""The cost of a switch is found as it is, and what isn't there is not, whatever the machine does.

Simulated as steps are: of very different lengths, on a machine that drifts and is interrupted.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.overhead import FEWEST, Block, cost, trimmed_difference

SEEDS = range(3)


def simulated(percent: float, number: int, seed: int) -> list[Block]:
    """Steps of 30 ms or of 1 s, 2 % noise, a drift, and spikes in one step of twenty."""
    chance = np.random.default_rng(seed)
    lengths = np.where(chance.random(number) < 0.2, 1.0, 0.03)
    drift = 1 + 0.3 * np.sin(np.linspace(0, 9, number))

    def steps(factor: float) -> np.ndarray:
        times = lengths * drift * factor * chance.lognormal(0, 0.02, number)
        return times * np.where(chance.random(number) < 0.05, chance.uniform(1.1, 3, number), 1)

    arms = steps(1 + percent / 100), steps(1), steps(1)
    return [Block(*map(float, block)) for block in zip(*arms, strict=True)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("percent", [0.0, 0.5, 3.0])
def test_what_it_costs_is_within_the_interval_and_nothing_is_between_a_and_a(
    percent: float, seed: int
) -> None:
    found = cost(simulated(percent, 800, seed), np.random.default_rng(seed))
    assert found.cost.low - 0.15 < percent < found.cost.high + 0.15
    assert found.noise.low - 0.15 < 0 < found.noise.high + 0.15
    assert found.is_known_within(0.5)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """95 % of 100 simulated cells, give or take three standard errors."""
    found = [cost(simulated(1.0, 60, seed), np.random.default_rng(seed)) for seed in range(100)]
    held = sum(one.cost.low <= 1.0 <= one.cost.high for one in found)
    # Spikes in one step of twenty, as often in either arm, leave no bias.
    assert abs(np.mean([one.cost.estimate for one in found]) - 1.0) < 0.15
    assert held >= 100 * 0.95 - 3 * (100 * 0.95 * 0.05) ** 0.5


def test_one_step_that_took_ten_times_as_long_changes_the_sums_alone() -> None:
    blocks = [Block(1.0, 1.0, 1.0)] * 30 + [Block(10.0, 1.0, 1.0)]
    found = cost(blocks, np.random.default_rng(0))
    assert found.cost.estimate == pytest.approx(0)
    assert found.by_sums == pytest.approx(9 / 31 * 100)


def test_the_order_of_blocks_of_any_length_is_nothing_to_the_estimate() -> None:
    on, off = np.array([[1.1], [110.0], [0.011]]), np.array([[1.0], [100.0], [0.01]])
    assert trimmed_difference(on, off) == pytest.approx(10)
    assert trimmed_difference(off, on) == pytest.approx(-100 / 11)


@pytest.mark.parametrize("number", [1, FEWEST - 1])
def test_few_blocks_are_no_verdict_however_much_they_agree(number: int) -> None:
    found = cost([Block(1.0, 1.0, 1.0)] * number, np.random.default_rng(0))
    assert found.half_width == 0
    assert not found.is_known_within(0.5)


def test_noise_makes_no_verdict() -> None:
    assert not cost(simulated(0.0, 15, 1), np.random.default_rng(1)).is_known_within(0.5)


def test_no_blocks_cost_nothing_that_is_known() -> None:
    found = cost([], np.random.default_rng(0))
    assert np.isnan([found.cost.estimate, found.noise.estimate, found.by_sums]).all()
    assert not found.is_known_within(0.5)
