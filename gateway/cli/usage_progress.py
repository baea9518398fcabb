"""How far an export is, on a terminal: by the time of its newest row, since rows are in order."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gateway.clock import SYSTEM_CLOCK
from gateway.usage.calendar import seconds
from gateway.usage.export import Export


def shown(export: Export) -> Iterator[bytes]:
    """The export's chunks, with a bar on stderr as long as they come."""
    console = Console(stderr=True)
    columns = (
        BarColumn(),
        TextColumn("{task.fields[rows]} rows, {task.description}"),
        TimeRemainingColumn(),
    )
    end_us = min(export.selection.end_us, SYSTEM_CLOCK.now_us())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=None, rows=0)
        first_us: int | None = None
        for chunk in export:
            yield chunk
            totals = export.totals
            if first_us is None and totals.rows:
                first_us = totals.reached_us
                bar.update(task, total=max(end_us - first_us, 1))
            bar.update(
                task,
                completed=totals.reached_us - (first_us or totals.reached_us),
                description=seconds(totals.reached_us),
                rows=totals.rows,
            )
