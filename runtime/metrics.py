"""Engines' counters in the text format of Prometheus, version 0.0.4. Pure.

One table of families; a series for each host. What can only be counted is there from the start, as
0: so an alert on its growth doesn't miss the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from engines.api import Stats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PHASES = ("before", "after")
KINDS = ("stale", "domain", "null", "quarantined")
GUARD = "slot"  # the kind of mismatch that the write guard finds
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Labels = Mapping[str, str]
Sample = tuple[Labels, float]


class Host(NamedTuple):
    """A host's labels and counters; None if it didn't answer.

    One that is gone has its counters alone: it holds nothing, and that it is down is as it should.
    """

    labels: Labels
    stats: Stats | None
    is_gone: bool = False


class Family(NamedTuple):
    """A metric: its name, its type, what it counts, and how it is read."""

    name: str
    kind: str  # counter or gauge
    help: str
    samples: Callable[[Stats], Iterable[Sample]]


def text(hosts: Sequence[Host]) -> str:
    """All metrics of all hosts, a family after the other."""
    lines = ["# HELP bulkhead_host_up Whether the host answered.", "# TYPE bulkhead_host_up gauge"]
    lines += [
        line("bulkhead_host_up", labels, stats is not None)
        for labels, stats, is_gone in hosts
        if not is_gone
    ]
    for family in FAMILIES:
        lines += [
            f"# HELP {family.name} {family.help}",
            f"# TYPE {family.name} {family.kind}",
        ]
        for labels, stats, is_gone in hosts:
            if stats is not None and not (is_gone and family.kind == "gauge"):
                for more, value in family.samples(stats):
                    lines.append(line(family.name, {**labels, **more}, value))
    return "\n".join(lines) + "\n"


def line(name: str, labels: Labels, value: float) -> str:
    """One sample."""
    told = ",".join(f'{key}="{text.translate(ESCAPES)}"' for key, text in labels.items())
    number = str(int(value)) if value == int(value) else repr(value)
    return f"{name}{{{told}}} {number}" if told else f"{name} {number}"


def _one(read: Callable[[Stats], float]) -> Callable[[Stats], Iterable[Sample]]:
    return lambda stats: [({}, read(stats))]


def _mismatches(stats: Stats) -> Iterator[Sample]:
    for phase in PHASES:
        for kind in KINDS:
            number = stats.mismatches.get(f"{phase}/{kind}", 0)
            yield {"phase": phase, "kind": kind}, number


def _guarded(stats: Stats) -> float:
    return sum(n for key, n in stats.mismatches.items() if key.endswith(f"/{GUARD}"))


def _aborts(stats: Stats) -> Iterator[Sample]:
    yield {"streamed": "false"}, stats.integrity_aborts - stats.integrity_aborts_streamed
    yield {"streamed": "true"}, stats.integrity_aborts_streamed


def _scrubbed(what: str) -> Callable[[Stats], Iterable[Sample]]:
    return _one(lambda stats: stats.scrubbed.get(what, 0))


FAMILIES = (
    Family(
        "kv_tag_pages_checked_total",
        "counter",
        "Pages whose tag was checked.",
        _one(lambda stats: stats.tag_pages_checked),
    ),
    Family(
        "kv_tag_mismatch_total",
        "counter",
        "Pages that weren't what their row had been given.",
        _mismatches,
    ),
    Family(
        "kv_write_guard_reject_total",
        "counter",
        "Slots that weren't their row's to write.",
        _one(_guarded),
    ),
    Family(
        "kv_pages",
        "gauge",
        "Pages by state.",
        lambda stats: [({"state": state}, number) for state, number in stats.pages.items()],
    ),
    Family(
        "kv_limbo_age_seconds_max",
        "gauge",
        "Since when the page that was given up first waits to be free.",
        _one(lambda stats: stats.limbo_age_s),
    ),
    Family(
        "kv_quarantine_pages",
        "gauge",
        "Pages taken out of use.",
        _one(lambda stats: stats.pages.get("quarantined", 0)),
    ),
    Family(
        "kv_scrub_pages_total", "counter", "Pages whose bytes were looked at.", _scrubbed("pages")
    ),
    Family(
        "kv_scrub_mismatch_total",
        "counter",
        "Sealed pages whose bytes had changed.",
        _scrubbed("mismatches"),
    ),
    Family(
        "kv_scrub_residue_total",
        "counter",
        "Free pages, or the null page, that weren't zero.",
        _scrubbed("residues"),
    ),
    Family(
        "kv_canary_fail_total",
        "counter",
        "Canaries past the pool's end that were written to.",
        _scrubbed("canaries"),
    ),
    Family(
        "kv_integrity_aborts_total",
        "counter",
        "Requests that were stopped by a check, before or after their first token.",
        _aborts,
    ),
    Family(
        "kv_integrity_retries_total",
        "counter",
        "Requests that a check had start again, cold.",
        _one(lambda stats: stats.integrity_retries),
    ),
    Family(
        "kv_check_seconds_total",
        "counter",
        "Time taken by the checks.",
        _one(lambda stats: stats.tag_check_s),
    ),
    Family(
        "engine_retiring",
        "gauge",
        "Whether the engine asks to be replaced.",
        _one(lambda stats: bool(stats.retirement)),
    ),
    Family("engine_steps_total", "counter", "Batches that were run.", _one(lambda s: s.steps)),
    Family(
        "engine_preemptions_total",
        "counter",
        "Requests that gave up their pages, to be computed again.",
        _one(lambda stats: stats.preempted),
    ),
    Family("engine_requests_running", "gauge", "Requests that run.", _one(lambda s: s.running)),
    Family("engine_requests_waiting", "gauge", "Requests that wait.", _one(lambda s: s.waiting)),
    Family(
        "engine_requests_aborted_total",
        "counter",
        "Requests that were given up by who asked.",
        _one(lambda stats: stats.aborted),
    ),
    Family(
        "engine_prompt_tokens_total",
        "counter",
        "Tokens of prompts, the cached ones too.",
        _one(lambda stats: stats.prompt_tokens),
    ),
    Family(
        "engine_cached_tokens_total",
        "counter",
        "Tokens of prompts whose pages were cached.",
        _one(lambda stats: stats.cached_tokens),
    ),
    Family(
        "engine_output_tokens_total", "counter", "Tokens chosen.", _one(lambda s: s.output_tokens)
    ),
    Family(
        "engine_drafted_tokens_total",
        "counter",
        "Guesses of tokens that were computed.",
        _one(lambda stats: stats.drafted_tokens),
    ),
    Family(
        "engine_accepted_tokens_total",
        "counter",
        "Of the guesses, those that were right.",
        _one(lambda stats: stats.accepted_tokens),
    ),
)
