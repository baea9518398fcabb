"""The panel at the bottom of the live view, drawn from the board's rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.rule import Rule
from rich.text import Text

from gateway.live.board import Row
from gateway.live.words import NOTHING, amount, clean, cut, span

COLOURS = {
    "ready": "green",
    "attached": "green",
    "starting": "yellow",
    "waiting for memory": "yellow",
    "draining": "yellow",
    "failed": "bold red",
    "down": "bold red",
    "cold": "dim",
}
STATE_WIDTH = 18
NUMBERS = (("HOSTS", 5), ("RUN", 4), ("WAIT", 5), ("MEMORY", 8), ("IDLE", 7))
MAX_NAME_WIDTH = 80
FIXED_WIDTH = STATE_WIDTH + sum(width for _, width in NUMBERS) + 2


def panel(title: Sequence[str], rows: Sequence[Row], width: int) -> Group:
    """A rule with the title's parts, as many as fit, then a line for each row."""
    name_width = max(8, min(MAX_NAME_WIDTH, width - FIXED_WIDTH))
    heading = f"{'MODEL':<{name_width}} {'STATE':<{STATE_WIDTH}}"
    heading += "".join(f"{name:>{column}}" for name, column in NUMBERS)
    lines = [Text(heading, "dim")]
    for row in rows:
        lines.append(_line(row, name_width))
        if row.trouble:
            lines.append(Text(f"  {clean(row.trouble)}", "red"))
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return Group(_rule(title, width), *lines)


def _line(row: Row, name_width: int) -> Text:
    quiet = "dim" if row.is_host else ""
    name = f"└ {row.name}" if row.is_host else row.name
    line = Text(f"{cut(name, name_width):<{name_width}} ", quiet)
    line.append(f"{cut(row.state, STATE_WIDTH):<{STATE_WIDTH}}", COLOURS.get(row.state, quiet))
    for value, (_, column) in zip(_numbers(row), NUMBERS, strict=True):
        line.append(f"{value:>{column}}", quiet)
    return line


def _numbers(row: Row) -> tuple[str, ...]:
    return (
        row.hosts,
        _count(row.running),
        _count(row.waiting),
        amount(row.rss_bytes) if row.running is not None else "",
        "" if row.idle_s is None else span(row.idle_s),
    )


def _count(number: int | None) -> str:
    return "" if number is None else str(number or NOTHING)


def _rule(title: Sequence[str], width: int) -> Rule:
    told = title[0] if title else ""
    for part in title[1:]:
        if len(told) + len(part) + 5 > width - 6:
            break
        told += f"  ·  {part}"
    return Rule(Text(cut(told, max(1, width - 6))), style="dim", align="left")
