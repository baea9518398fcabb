"""How many hosts a model has, and when one is tried again. Pure: no clock, no process, no I/O.

Times are seconds of one monotonic clock. Who gets memory when it is short is in `sharing`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """What the requests of one model need: those that wait, those that run, and their tokens."""

    waiting: int = 0
    in_flight: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Policy:
    """How a model's hosts are scaled: its section of the configuration."""

    min_hosts: int = 0
    max_hosts: int = 1
    max_in_flight: int = 128
    tokens_per_host: int = 262144
    idle_timeout_s: float = 300.0


def hosts_needed(policy: Policy, load: Load) -> int:
    """The fewest hosts that hold this load, within the model's bounds."""
    requests = load.waiting + load.in_flight
    by_requests = -(-requests // policy.max_in_flight)
    by_tokens = -(-load.tokens // policy.tokens_per_host) if requests else 0
    return min(policy.max_hosts, max(policy.min_hosts, by_requests, by_tokens))


@dataclass(frozen=True, slots=True)
class Slack:
    """Since when a model has had more hosts than it needs, and the most it needed meanwhile."""

    since: float
    peak: int


def slack_after(before: Slack | None, live: int, needed: int, now: float) -> Slack | None:
    """The slack of a model with so many live hosts; None while all of them are needed."""
    if needed >= live:
        return None
    if before is None:
        return Slack(now, needed)
    return Slack(before.since, max(before.peak, needed))


def start_cause(policy: Policy, current: int, outdated: int) -> str:
    """What one more host is for, beside those made as they should be and those that aren't."""
    if outdated:
        return "replacement"
    if current < policy.min_hosts:
        return "min_hosts"
    return "load" if current else "first request"


def hosts_to_stop(slack: Slack | None, live: int, policy: Policy, now: float) -> int:
    """How many hosts have gone unneeded for the whole of the idle timeout."""
    if slack is None or now - slack.since < policy.idle_timeout_s:
        return 0
    return max(0, live - max(slack.peak, policy.min_hosts))


def backoff_s(failures: int, first_s: float, max_s: float) -> float:
    """How long to wait before the next start, after so many failures in a row."""
    if failures <= 0:
        return 0.0
    return min(max_s, first_s * 2.0 ** min(failures - 1, 30))


HEALTHY_S = 60.0  # a host that served for so long has cleared the failures before it


def failures_after(failures: int, lived_s: float, healthy_s: float = HEALTHY_S) -> int:
    """Failures in a row once a host that lived `lived_s` has failed; a long life clears them."""
    return 1 if lived_s >= healthy_s else failures + 1
