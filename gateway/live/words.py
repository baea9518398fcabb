"""Sizes, spans and counts in few characters. Pure."""

from __future__ import annotations

NOTHING = "-"


def amount(num_bytes: int) -> str:
    """Bytes: `412 MB`, `3.1 GB`; a dash for none."""
    if num_bytes <= 0:
        return NOTHING
    size = num_bytes / 1e6
    if size < 1:
        return "<1 MB"
    return f"{size:.0f} MB" if size < 999.5 else f"{size / 1e3:.1f} GB"


def span(seconds: float) -> str:
    """A span of time: `4 s`, `3 min`, `2 h`, `5 d`."""
    seconds = max(0.0, seconds)
    for limit, unit, name in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // unit)} {name}"
    return f"{int(seconds // 86400)} d"


def duration(milliseconds: float | None) -> str:
    """How long something took: `3 ms`, `1.25 s`, `84 s`; nothing for None."""
    if milliseconds is None:
        return ""
    if milliseconds < 999.5:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1e3
    return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.0f} s"


def tokens(read: int | None, cached: int | None, written: int | None) -> str:
    """Tokens of a request: read, of them cached, written: `34 (16) → 120`."""
    if read is None:
        return ""
    reused = f" ({cached})" if cached else ""
    return f"{read}{reused} → {written or 0}"


def cut(text: str, width: int) -> str:
    """`text` in at most `width` characters."""
    return text if len(text) <= width else text[: width - 1] + "…"


def count(number: int, thing: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def clean(text: str) -> str:
    """`text` on one line, without what a terminal would obey: a client chose some of it."""
    return printable(" ".join(text.split()))


def printable(text: str) -> str:
    """A line as it is, but for what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "·" for letter in text)
