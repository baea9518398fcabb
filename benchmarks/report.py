"""What a benchmark says at its end: a table for people, then one line of JSON for machines."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from benchmarks.process import ROOT


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of them don't exceed; NaN of none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the middle two; NaN of none."""
    if not values:
        return float("nan")
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def at_least(value: float, target: float) -> dict[str, Any]:
    """A figure with a floor."""
    return {"value": _short(value), "target": target, "ok": value >= target}


def at_most(value: float, target: float) -> dict[str, Any]:
    """A figure with a ceiling."""
    return {"value": _short(value), "target": target, "ok": value <= target}


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns of equal width, the first one left-aligned."""
    cells = [list(head), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = []
    for row in cells:
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([row[0].ljust(len(first)), *rest]))
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def foreign_note(share: float) -> str:
    """A line on how much of the machine was others' while the figures were taken."""
    warning = "; these figures are not to be trusted" if share > 0.05 else ""
    return f"used by others meanwhile: {share:.0%} of the machine{warning}"


def emit(bench: str, targets: dict[str, dict[str, Any]], raw: dict[str, Any]) -> None:
    """Print the targets, then the last line."""
    rows = [
        (name, one["value"], one["target"], "yes" if one["ok"] else "no")
        for name, one in targets.items()
    ]
    print("\n" + table(("target", "value", "bar", "met"), rows))
    about = {
        "bench": bench,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "python": platform.python_version(),
    }
    print(json.dumps(_finite(about | {"targets": targets, "raw": raw})), flush=True)


def _cell(value: object) -> str:
    return f"{_short(value):,}" if isinstance(value, float) else str(value)


def _short(value: float) -> float:
    """Three digits that matter, and all of those before the point."""
    return float(f"{value:.0f}") if abs(value) >= 100 else float(f"{value:.3g}")


def _finite(value: Any) -> Any:
    """The same with None for NaN, which JSON lacks, and floats cut short."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, float):
        return _short(value) if value == value else None
    return value


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()
