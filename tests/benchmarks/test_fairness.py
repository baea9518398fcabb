"""How evenly several were served, and what one had of an answer until a moment."""

from __future__ import annotations

import pytest

from benchmarks.bench_fairness import had, jain
from benchmarks.load import Sample


@pytest.mark.parametrize(
    ("got", "index"), [((5, 5, 5, 5), 1.0), ((7, 0, 0, 0), 0.25), ((1, 1, 0, 0), 0.5)]
)
def test_jain_s_index(got: tuple[int, ...], index: float) -> None:
    assert jain(got) == pytest.approx(index)


def test_of_an_answer_only_what_came_until_then_counts() -> None:
    """An output token twice, the closing events not at all, and the prompt once it has begun."""
    arrivals = [1.0, 2.0, 3.0, 3.1, 3.1, 3.1]
    sample = Sample(0.5, arrivals, ended=3.1, status=200, prompt_tokens=6, output_tokens=3)
    assert [had(sample, end) for end in (0.9, 1.0, 2.5, 9.0)] == [0, 8, 10, 12]
