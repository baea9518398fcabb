"""Rows in columns, for people."""

from __future__ import annotations

from collections.abc import Sequence

Row = tuple[str, ...]


def of_all(rows: Sequence[Row], heading: Row, tenants: Sequence[str]) -> tuple[list[Row], Row]:
    """Rows of several tenants, with the name of each before them, and their heading."""
    named = zip(tenants, rows, strict=True)
    return [(tenant, *row) for tenant, row in named], ("TENANT", *heading)


def table(rows: Sequence[Row], heading: Row, none: str = "") -> str:
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
