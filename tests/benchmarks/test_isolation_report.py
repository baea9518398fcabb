"""What bench_isolation makes of samples: clean ones pass, and nothing passes by not looking."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.isolation_report import (
    APART,
    ONE_TENANT,
    PLACES,
    Cell,
    Samples,
    delta_ms,
    figures,
    targets,
)
from benchmarks.leaky_engine import DOMAIN_NOT_IN_KEY, SALT_DROPPED

SEEN = (ONE_TENANT, SALT_DROPPED, DOMAIN_NOT_IN_KEY)
WITHIN_DELTA = {f"apart_8p_{load}_within_delta_ms" for load in (0, 50)}
COLD_MS, SAVED_MS, PAGES = 200.0, 160.0, 8


def timed(number: int, faster_ms: float, chance: np.random.Generator) -> list[tuple[float, float]]:
    """(candidate, control) with a noise of 1 %. Evenly: the arms differ by `faster_ms` alone."""
    times = COLD_MS * chance.lognormal(0, 0.01, (number // 2, 2))
    both = np.concatenate((times, times[:, ::-1])) - (faster_ms, 0.0)
    return [(float(candidate), float(control)) for candidate, control in both]


def clean(pairs: int = 1600) -> Samples:
    """Tenants apart, and everything else as it must be."""
    chance, samples = np.random.default_rng(7), Samples()
    for load in (0.0, 0.5):
        samples.pairs[Cell(APART, PAGES, load)] = timed(pairs, 0.0, chance)
    for who in SEEN:
        samples.pairs[Cell(who, PAGES, 0.0)] = timed(60, SAVED_MS, chance)
    samples.reuse = [(60.0 + number, 2000.0 - number) for number in range(12)]
    samples.ranks = list(range(PLACES)) * 5
    return samples


def unmet(samples: Samples) -> set[str]:
    """The names of the targets that aren't met."""
    chance = np.random.default_rng(7)
    found: dict[str, dict[str, Any]] = targets(figures(samples, chance), samples, chance)
    return {name for name, one in found.items() if not one["ok"]}


def test_a_clean_cache_meets_every_target() -> None:
    assert unmet(clean()) == set()


def test_few_pairs_find_no_leak_and_do_not_rule_one_out() -> None:
    assert unmet(clean(40)) - WITHIN_DELTA == {"attacker_auc_upper"}


def test_a_leak_under_load_alone_is_a_leak() -> None:
    samples = clean()
    samples.pairs[Cell(APART, PAGES, 0.5)] = timed(1600, 3.0, np.random.default_rng(3))
    assert {"apart_8p_50_p", "apart_8p_50_within_delta_ms"} <= unmet(samples)


@pytest.mark.parametrize("who", SEEN)
def test_a_control_that_shows_nothing_fails(who: str) -> None:
    samples = clean()
    samples.pairs[Cell(who, PAGES, 0.0)] = timed(60, 0.0, np.random.default_rng(3))
    assert {f"{who}_8p_0_seen_p", f"{who}_8p_0_seen_auc"} <= unmet(samples)


def test_a_control_that_was_left_out_fails() -> None:
    samples = clean()
    del samples.pairs[Cell(SALT_DROPPED, PAGES, 0.0)]
    assert unmet(samples) == {"positive_controls"}


def test_nothing_passes_for_want_of_samples() -> None:
    samples = Samples()
    assert unmet(samples) == {
        *("attacker_auc_upper", "order_of_completion_p"),
        *("own_reuse_ratio_upper", "positive_controls"),
    }
    samples = clean()
    samples.errors.append("a request failed")
    assert unmet(samples) == {"errors"}


def test_without_the_measured_saving_there_is_no_delta() -> None:
    samples = clean()
    del samples.pairs[Cell(ONE_TENANT, PAGES, 0.0)]
    assert unmet(samples) >= WITHIN_DELTA


def test_delta_is_the_smaller_of_the_two() -> None:
    found = figures(clean(), np.random.default_rng(7))
    assert delta_ms(found, PAGES) == pytest.approx(COLD_MS / 100, rel=0.05)
    samples = clean()
    samples.pairs[Cell(ONE_TENANT, PAGES, 0.0)] = timed(60, 32.0, np.random.default_rng(3))
    found = figures(samples, np.random.default_rng(7))
    assert delta_ms(found, PAGES) == pytest.approx(32 / PAGES / 4, rel=0.2)


def test_a_favoured_rank_fails() -> None:
    samples = clean()
    samples.ranks = [0] * 40 + list(range(PLACES)) * 3
    assert unmet(samples) == {"order_of_completion_p"}
