"""What a gateway and our hosts agree on beside OpenAI's wire format.

A host's stream carries running counts as SSE comments, which clients ignore and the relay strips,
so that a cut stream is still metered exactly:

    : p=34 c=16        prompt tokens, of them cached; once, before the first frame
    : t=7              output tokens up to and including the next frame
"""

from __future__ import annotations

from dataclasses import dataclass

REQUEST_ID = "x-request-id"
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
HOST_KEEP_ALIVE_S = 600  # of an idle connection to a host; the gateway gives it up well before


@dataclass(frozen=True, slots=True)
class Counts:
    """Running counts of one answer; None where this comment doesn't say."""

    prompt: int | None = None
    cached: int | None = None
    output: int | None = None


def prompt_comment(prompt: int, cached: int) -> bytes:
    """The comment that opens a host's stream."""
    return b": p=%d c=%d\n\n" % (prompt, cached)


def output_comment(output: int) -> bytes:
    """The comment line that precedes a frame's data line."""
    return b": t=%d\n" % output


def parse_comment(line: bytes) -> Counts:
    """The counts in a comment line, whatever else it holds."""
    found: dict[bytes, int] = {}
    for word in line.lstrip(b": ").split():
        name, _, value = word.partition(b"=")
        if value.isdigit():
            found[name] = int(value)
    return Counts(found.get(b"p"), found.get(b"c"), found.get(b"t"))
