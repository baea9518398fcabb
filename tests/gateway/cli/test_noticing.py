"""What a planted fault's outcome is called, by a host's counters before and after."""

from __future__ import annotations

from typing import Any

import pytest

from engines.api import Stats
from gateway.cli.noticing import Series, not_noticed, noticed, series_of
from runtime.metrics import Host, text


def series(*, is_gone: bool = False, **counts: Any) -> Series:
    other = Host({"host": "h-10", "model": "m"}, Stats(integrity_aborts=9, pages={"free": 9}))
    told = text([Host({"host": "h-1", "model": "m"}, Stats(**counts), is_gone), other])
    return series_of("h-1", told)


QUIET = series(mismatches={"before/stale": 2}, integrity_aborts=2)


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({}, ""),
        (
            {"mismatches": {"before/stale": 3}, "integrity_aborts": 4},
            "noticed by the check before; 2 requests stopped",
        ),
        (
            {"mismatches": {"before/stale": 2, "after/stale": 1, "before/slot": 1}},
            "noticed by the check after and the write guard",
        ),
        (
            {"mismatches": {"before/domain": 3}, "integrity_retries": 1, "retirement": "x"},
            "noticed by the check before; 1 request started again, cold; "
            "the host is being replaced",
        ),
        ({"scrubbed": {"mismatches": 1}}, "noticed by a checksum"),
        ({"scrubbed": {"residues": 1}}, "noticed by scrubbing"),
        ({"is_gone": True}, "the host has ended"),
    ],
)
def test_who_noticed_and_what_became_of_it(counts: dict[str, Any], told: str) -> None:
    assert noticed(QUIET, series(**counts)) == told


def test_a_host_that_does_not_answer_just_now_has_not_ended() -> None:
    silent = series_of("h-1", text([Host({"host": "h-1", "model": "m"}, None)]))
    assert noticed(QUIET, silent) == ""
    assert noticed(silent, QUIET) == noticed({}, QUIET) == ""


def test_what_nobody_has_noticed_says_when_to_expect_it() -> None:
    """Scrubbing by the rate at which it has gone."""
    after = series(pages={"free": 600, "active": 40}, scrubbed={"pages": 320})
    told = not_noticed(QUIET, after, "scrubbing", 5)
    assert told == "not noticed within 5 s: scrubbing may take 10 s to come to it"
    told = not_noticed(QUIET, series(), "checksum", 5)
    assert told == "not noticed within 5 s: scrubbing comes to it in time"
    told = not_noticed(QUIET, after, "content key", 5)
    assert told == "not noticed within 5 s: content key notices it when a request meets it"
