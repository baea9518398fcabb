"""The caller's trace, as W3C's Trace Context writes it: whose child our span is."""

from __future__ import annotations

import re
from typing import NamedTuple

_FORM = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
    r"(?P<more>-.*)?"
)


class Parent(NamedTuple):
    """The span that called us."""

    trace_id: int
    span_id: int
    is_sampled: bool


def parent_of(header: str) -> Parent | None:
    """None for what isn't one: a broken header starts a new trace, and harms nothing."""
    found = _FORM.fullmatch(header.strip())
    if found is None or found["version"] == "ff" or (found["version"] == "00" and found["more"]):
        return None
    trace_id, span_id = int(found["trace"], 16), int(found["span"], 16)
    if not (trace_id and span_id):
        return None
    return Parent(trace_id, span_id, bool(int(found["flags"], 16) & 1))
