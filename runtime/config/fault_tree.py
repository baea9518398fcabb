"""A report as a tree for people: the file above, errors and warnings apart, paths as branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from runtime.config.report import Fault, Report, split

RED, YELLOW, BOLD, RESET = "\033[31m", "\033[33m", "\033[1m", "\033[0m"


@dataclass(slots=True)
class Branch:
    """One segment of paths: what is said of it, and what lies below."""

    messages: list[str] = field(default_factory=list)
    below: dict[str, Branch] = field(default_factory=dict)


def draw(source: str, report: Report, *, colour: bool = False) -> str:
    """The whole report. Empty if nothing was found."""
    lines: list[str] = []
    for sign, paint, word, faults in (
        ("✗", RED, "error", report.errors),
        ("▲", YELLOW, "warning", report.warnings),
    ):
        if faults:
            heading = f"{sign} {len(faults)} {word}{'s' if len(faults) > 1 else ''}"
            lines.append(f"{paint}{heading}{RESET}" if colour else heading)
            lines += _drawn(_grown(faults), "  ")
    if not lines:
        return ""
    return "\n".join([f"{BOLD}{source}{RESET}" if colour else source, *lines])


def _grown(faults: Sequence[Fault]) -> Branch:
    root = Branch()
    for fault in faults:
        branch = root
        for segment in split(fault.path):
            branch = branch.below.setdefault(segment, Branch())
        branch.messages.append(fault.message)
    return root


def _drawn(branch: Branch, indent: str) -> list[str]:
    """A branch's messages come first, then the branches below; the last of all ends the line."""
    items: list[tuple[str, Branch | None]] = [(message, None) for message in branch.messages]
    items += map(_named, branch.below.items())
    lines: list[str] = []
    for i, (text, below) in enumerate(items):
        is_last = i == len(items) - 1
        lines.append(f"{indent}{'└─' if is_last else '├─'} {text}")
        if below is not None:
            lines += _drawn(below, indent + ("   " if is_last else "│  "))
    return lines


def _named(item: tuple[str, Branch]) -> tuple[str, Branch | None]:
    """`server.port: message` on one line, as far as the path doesn't fork."""
    name, branch = item
    while not branch.messages and len(branch.below) == 1:
        [(segment, branch)] = branch.below.items()
        name = f"{name}.{segment}"
    if len(branch.messages) == 1 and not branch.below:
        return f"{name}: {branch.messages[0]}", None
    return name, branch
