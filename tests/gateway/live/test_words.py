"""Sizes, spans and counts as people read them."""

from __future__ import annotations

import pytest

from gateway.live.words import amount, clean, count, cut, duration, span, tokens


@pytest.mark.parametrize(
    ("num_bytes", "told"),
    [
        (0, "-"),
        (999, "<1 MB"),
        (412_300_000, "412 MB"),
        (999_400_000, "999 MB"),
        (999_600_000, "1.0 GB"),
        (3_140_000_000, "3.1 GB"),
    ],
)
def test_amounts(num_bytes: int, told: str) -> None:
    assert amount(num_bytes) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (-1, "0 s"),
        (0, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (7200, "2 h"),
        (86_399, "23 h"),
        (86_400 * 5, "5 d"),
    ],
)
def test_spans(seconds: float, told: str) -> None:
    assert span(seconds) == told


@pytest.mark.parametrize(
    ("milliseconds", "told"),
    [
        (None, ""),
        (0.2, "0 ms"),
        (999.4, "999 ms"),
        (999.6, "1.00 s"),
        (9994, "9.99 s"),
        (9996, "10 s"),
        (84_000, "84 s"),
    ],
)
def test_durations(milliseconds: float | None, told: str) -> None:
    assert duration(milliseconds) == told


def test_tokens_cuts_and_counts() -> None:
    assert tokens(34, 16, 120) == "34 (16) → 120"
    assert tokens(34, 0, None) == "34 → 0"
    assert tokens(None, None, None) == ""
    assert (cut("abcd", 4), cut("abcde", 4)) == ("abcd", "abc…")
    assert (count(0, "error"), count(1, "error"), count(2, "error")) == (
        "0 errors",
        "1 error",
        "2 errors",
    )


def test_what_a_terminal_would_obey_is_taken_out() -> None:
    assert clean("GET /\x1b[2J\x07\x9b31m") == "GET /·[2J··31m"
    assert clean("a\r\nb\tc") == "a b c"
    assert clean("héllo →") == "héllo →"
