"""Pure decisions about hosts: no clock, no process, no I/O."""

from __future__ import annotations


def backoff_s(failures: int, first_s: float, max_s: float) -> float:
    """How long to wait before the next start, after so many failures in a row."""
    if failures <= 0:
        return 0.0
    return min(max_s, first_s * 2.0 ** min(failures - 1, 30))


def failures_after(failures: int, lived_s: float, healthy_s: float = 60.0) -> int:
    """Failures in a row once a host that lived `lived_s` has ended; a long life clears them."""
    return 1 if lived_s >= healthy_s else failures + 1
