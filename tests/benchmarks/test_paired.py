"""The statistics have power: what is there is found, and what isn't there is not.

Simulated as timings are: noise with a long tail, spikes, a machine that drifts.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from benchmarks.paired import (
    PROBES,
    Interval,
    Pairs,
    attacker_auc,
    holm,
    interval,
    low_difference,
    median_difference,
    pairs_needed,
    ratio_of_medians,
    sign_p,
    uniform_p,
    wilcoxon_p,
)

ALPHA = 1e-3
SEEDS = range(3)
RELEASE = 4000  # pairs
DELTA = 1.5  # ms


def simulated(leak_ms: float, number: int, seed: int) -> Pairs:
    """120 ms with 8 % noise, 2 % spikes and a drift that both arms share."""
    chance = np.random.default_rng(seed)
    drift = 1 + 0.1 * np.sin(np.linspace(0, 9, number))

    def arm() -> np.ndarray:
        times = 120 * drift * chance.lognormal(0, 0.08, number)
        return times * np.where(chance.random(number) < 0.02, chance.uniform(1, 3, number), 1)

    return Pairs(arm() - leak_ms, arm())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leak_of_two_milliseconds_is_found_by_every_test(seed: int) -> None:
    pairs, chance = simulated(2.0, RELEASE, seed), np.random.default_rng(seed)
    assert wilcoxon_p(pairs) < ALPHA
    assert sign_p(pairs) < ALPHA
    assert interval(pairs, median_difference, chance).high < 0
    assert interval(pairs, low_difference, chance).high < 0


@pytest.mark.parametrize("seed", SEEDS)
def test_where_nothing_leaks_nothing_is_found_and_the_arms_are_shown_alike(seed: int) -> None:
    pairs, chance = simulated(0.0, RELEASE, seed), np.random.default_rng(seed)
    assert min(holm([wilcoxon_p(pairs), sign_p(pairs)])) > ALPHA
    assert interval(pairs, median_difference, chance).reach < DELTA
    assert interval(pairs, low_difference, chance).reach < DELTA
    auc = attacker_auc([pairs], chance)
    assert auc.low < auc.estimate < auc.high < 0.58


@pytest.mark.parametrize("seed", SEEDS)
def test_arms_two_milliseconds_apart_are_not_shown_alike(seed: int) -> None:
    pairs, chance = simulated(2.0, RELEASE, seed), np.random.default_rng(seed)
    assert interval(pairs, median_difference, chance).reach > DELTA
    assert interval(pairs, low_difference, chance).reach > DELTA


@pytest.mark.parametrize("seed", SEEDS)
def test_too_few_pairs_show_nothing(seed: int) -> None:
    """Without a leak, and without the power to say so: equivalence is not for free."""
    pairs, chance = simulated(0.0, 40, seed), np.random.default_rng(seed)
    assert wilcoxon_p(pairs) > ALPHA
    assert interval(pairs, median_difference, chance).reach > DELTA


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """90 % of 100 simulated experiments, give or take three standard errors."""
    held = 0
    for seed in range(100):
        pairs, chance = simulated(5.0, 100, seed), np.random.default_rng(seed)
        found = interval(pairs, median_difference, chance)
        held += found.low <= -5.0 <= found.high
    assert held >= 100 * 0.9 - 3 * (100 * 0.9 * 0.1) ** 0.5


def test_an_attacker_who_averages_sees_more() -> None:
    chance = np.random.default_rng(1)
    seeing, blind = simulated(40.0, 600, 1), simulated(0.0, 600, 1)
    assert attacker_auc([seeing], chance).estimate > 0.95
    assert 0.7 < attacker_auc([seeing, blind], chance).estimate < 0.8, "the mean of both"


def test_too_few_averages_tell_nothing_of_an_attacker() -> None:
    chance = np.random.default_rng(1)
    for cells in ([], [simulated(0.0, 2 * PROBES - 1, 1)]):
        assert np.isnan(attacker_auc(cells, chance).high)


def test_a_favoured_place_is_found_and_chance_is_not() -> None:
    chance = np.random.default_rng(1)
    even = chance.integers(0, 16, 320).tolist()
    assert uniform_p(even, 16) > ALPHA
    early = np.where(chance.random(320) < 0.3, 0, even).tolist()
    assert uniform_p(early, 16) < ALPHA


def test_holm_s_correction_is_the_textbook_s() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_keeps_the_order_and_makes_none_smaller(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))
    assert [q for _, q in sorted(zip(p_values, adjusted, strict=True))] == sorted(adjusted)


def test_equal_times_are_no_difference() -> None:
    same = Pairs.of([(7.0, 7.0)] * 12)
    assert sign_p(same) == 1.0
    found = interval(same, ratio_of_medians, np.random.default_rng(0), 0.95)
    assert found == Interval(1.0, 1.0, 1.0)


def test_the_ratio_of_medians_has_its_interval() -> None:
    chance = np.random.default_rng(3)
    times = chance.lognormal(0, 0.1, (2, 20))
    found = interval(Pairs(30 * times[0], 120 * times[1]), ratio_of_medians, chance, 0.95)
    assert found.low < 0.25 < found.high < 0.3


def test_twice_as_near_takes_four_times_as_many() -> None:
    assert pairs_needed(250, 4.0, 2.0) == 1000


def test_no_pairs_have_no_interval() -> None:
    found = interval(Pairs.of([]), median_difference, np.random.default_rng(0))
    assert np.isnan([found.estimate, found.low, found.high]).all()
