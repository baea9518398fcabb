"""The metrics that gateways tell, and how they are written: Prometheus' text format.

Labels are bounded: models, routes, outcomes and codes are ours; tenants beyond MAX_TENANTS share
the name `other`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from runtime.metrics import line

MAX_TENANTS = 1000
OTHER = "other"


class Sample(NamedTuple):
    """One number of a family."""

    name: str  # the family's, or with a histogram's _bucket, _sum or _count after it
    labels: dict[str, str]
    value: float


class Told(Struct, frozen=True):
    """What one gateway process tells of itself."""

    pid: int
    samples: list[tuple[str, dict[str, str], float]]


FAMILIES: Mapping[str, tuple[str, str]] = {
    "bulkhead_requests_total": (
        "counter",
        "Requests to /v1 that have ended, by status and error code.",
    ),
    "bulkhead_completions_total": (
        "counter",
        "Requests with a record in the ledger, by outcome.",
    ),
    "bulkhead_tokens_total": ("counter", "Tokens of these, by class; input is what wasn't cached."),
    "bulkhead_limited_total": ("counter", "Requests that a limit refused, by whose and of what."),
    "bulkhead_usage_over_bound_total": (
        "counter",
        "Requests whose engine claimed more tokens than they could use.",
    ),
    "bulkhead_request_seconds": ("histogram", "From a completion's first byte to its end."),
    "bulkhead_first_token_seconds": ("histogram", "To the first token of a streamed one."),
    "bulkhead_requests_in_progress": ("gauge", "Completions that run or wait."),
    "bulkhead_waiting": ("gauge", "Requests that wait for a model."),
    "bulkhead_place_in_flight": ("gauge", "Requests at a host or an attached server."),
    "bulkhead_place_takes": (
        "gauge",
        "Whether a host or server is sent requests: 0 while its breaker is open.",
    ),
    "bulkhead_guard_trusted": (
        "gauge",
        "Whether the guard in an attached server is known to watch: else it is sent nothing.",
    ),
    "bulkhead_guard_violations": (
        "gauge",
        "Violations that it has told of, since this process follows it.",
    ),
    "bulkhead_guard_unwatched": (
        "gauge",
        "Requests ended since it watched no more, since this process follows it.",
    ),
    "bulkhead_guard_steps": ("gauge", "Steps that it has looked at, since its server's start."),
    "bulkhead_keys_blind": ("gauge", "Whether keys can't be checked: all requests are refused."),
    "bulkhead_limits_together": (
        "gauge",
        "Whether limits are counted with all gateways: 0 while Redis can't be asked.",
    ),
    "bulkhead_ledger_in_doubt": ("gauge", "Whether the ledger can't be written to."),
}


def text(told: Sequence[Told]) -> str:
    """All that gateways tell, a family after the other; each process is a series of its own."""
    lines = []
    for name, (kind, help_) in FAMILIES.items():
        lines += [f"# HELP {name} {help_}", f"# TYPE {name} {kind}"]
        for one in told:
            for sample, labels, value in one.samples:
                if family_of(sample) == name:
                    lines.append(line(sample, {**labels, "pid": str(one.pid)}, value))
    return "".join(f"{one}\n" for one in lines)


def family_of(sample: str) -> str:
    """The family that a sample's name belongs to."""
    if sample in FAMILIES:
        return sample
    for end in ("_bucket", "_sum", "_count"):
        if (name := sample.removesuffix(end)) in FAMILIES:
            return name
    raise KeyError(sample)


def all_of(samples: Iterable[Sample]) -> list[tuple[str, dict[str, str], float]]:
    """As they are told."""
    return [(name, labels, float(value)) for name, labels, value in samples]
