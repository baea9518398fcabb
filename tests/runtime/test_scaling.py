"""When a host is started again: pure tables."""

from __future__ import annotations

import pytest

from runtime.scaling import backoff_s, failures_after


@pytest.mark.parametrize(
    ("failures", "wait_s"),
    [(-1, 0), (0, 0), (1, 0.5), (2, 1), (3, 2), (4, 4), (6, 16), (7, 30), (100, 30), (10**9, 30)],
)
def test_the_wait_doubles_up_to_its_limit(failures: int, wait_s: float) -> None:
    assert backoff_s(failures, 0.5, 30.0) == wait_s


def test_a_first_wait_over_the_limit_is_the_limit() -> None:
    assert backoff_s(1, 60.0, 30.0) == 30.0


@pytest.mark.parametrize(
    ("failures", "lived_s", "after"),
    [(0, 0, 1), (1, 0, 2), (5, 59.9, 6), (5, 60, 1), (5, 1e6, 1), (0, 1e6, 1)],
)
def test_a_long_life_clears_the_failures_before_it(
    failures: int, lived_s: float, after: int
) -> None:
    assert failures_after(failures, lived_s) == after
