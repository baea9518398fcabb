"""Rows in columns, for people."""

from __future__ import annotations

from collections.abc import Sequence


def table(rows: Sequence[tuple[str, ...]], heading: tuple[str, ...], none: str = "") -> str:
    """Columns for people; `none` instead if there are no rows."""
    if none and not rows:
        return none
    every = [heading, *rows]
    widths = [max(len(row[i]) for row in every) for i in range(len(heading))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in every
    )
    return "\n".join(line.rstrip() for line in lines)
