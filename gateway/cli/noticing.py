"""Whether a planted fault was noticed: a host's counters before it and after. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.live.words import count, span

Series = Mapping[str, float]  # as Prometheus reads it: a metric's name with its labels, its value

SCRUBBING = ("scrubbing", "checksum")  # layers that look at all pages in turn, in the background
UP = "bulkhead_host_up"  # told of hosts that are there
LAYERS = (
    ("kv_tag_mismatch_total", 'phase="before"', "the check before"),
    ("kv_tag_mismatch_total", 'phase="after"', "the check after"),
    ("kv_write_guard_reject_total", "", "the write guard"),
    ("kv_scrub_mismatch_total", "", "a checksum"),
    ("kv_scrub_residue_total", "", "scrubbing"),
    ("kv_canary_fail_total", "", "scrubbing, at a canary"),
)


def series_of(host: str, text: str) -> Series:
    """One host's series, of the text of all."""
    mark = f'host="{host}"'
    lines = [line for line in text.splitlines() if mark in line and line[:1] != "#"]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def noticed(before: Series, after: Series) -> str:
    """Who noticed, and what became of it; "" while nobody has, or the host can't say."""
    if not _total(before, UP):
        return ""
    layers = [words for name, mark, words in LAYERS if _grown(before, after, name, mark)]
    told = [f"noticed by {' and '.join(layers)}"] if layers else []
    told += _outcome(before, after)
    return "; ".join(told)


def not_noticed(before: Series, after: Series, layer: str, waited_s: float) -> str:
    """What to expect of a fault that nobody has noticed in so many seconds."""
    told = f"not noticed within {waited_s:g} s"
    if layer not in SCRUBBING:
        return f"{told}: {layer} notices it when a request meets it"
    pages, looked = _total(after, "kv_pages"), _grown(before, after, "kv_scrub_pages_total")
    if not looked:
        return f"{told}: scrubbing comes to it in time"
    return f"{told}: scrubbing may take {span(pages * waited_s / looked)} to come to it"


def _outcome(before: Series, after: Series) -> Iterator[str]:
    if stopped := int(_grown(before, after, "kv_integrity_aborts_total")):
        yield f"{count(stopped, 'request')} stopped"
    if again := int(_grown(before, after, "kv_integrity_retries_total")):
        yield f"{count(again, 'request')} started again, cold"
    if UP not in _names(after):
        yield "the host has ended"
    elif _grown(before, after, "engine_retiring"):
        yield "the host is being replaced"


def _names(series: Series) -> set[str]:
    return {key.partition("{")[0] for key in series}


def _grown(before: Series, after: Series, name: str, mark: str = "") -> float:
    return max(0.0, _total(after, name, mark) - _total(before, name, mark))


def _total(series: Series, name: str, mark: str = "") -> float:
    return sum(
        value for key, value in series.items() if key.startswith(f"{name}{{") and mark in key
    )
