"""A host's page pool, drawn: a cell a page, or for several where there are too many. Pure.

States are told by glyphs, domains by colours; where there are no colours, domains are told by
letters, which are capitals while a request uses the page. A cell that stands for several pages
shows the state that most of them are in; one of them in quarantine is always seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import cycle, groupby
from string import ascii_uppercase
from typing import NamedTuple

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from gateway.live.words import clean, count, cut, span

GLYPHS = {
    "free": "·",
    "loading": "+",
    "active": "█",
    "sealed": "▓",
    "cached": "░",
    "retiring": "~",
    "zeroing": "-",
    "quarantined": "!",
}
BY_LETTER = {state[0]: state for state in GLYPHS}
IN_USE = ("loading", "active", "sealed")
OF_NOBODY = ("free", "quarantined")
WORDS = "pinned: in a transfer; generation: tags so far; a domain: a tenant's pseudonym"
ALARM = "bold red"
QUIET = "dim"
PALETTE = (
    "cyan",
    "green",
    "magenta",
    "yellow",
    "blue",
    "bright_cyan",
    "bright_green",
    "bright_red",
)
NOBODY = -1
MAX_DOMAINS = 6  # named in the legend
GAP = "  "
LEAST_ROWS = 2  # of cells, however low the terminal is
FOLDED_FROM = 2  # rows without anything in them, one after the other


class DomainPages(Struct, frozen=True):
    """One domain's pages by state, and how long ago they came into it."""

    domain: str
    pages: dict[str, int]
    youngest_s: float
    oldest_s: float


class HostPages(Struct, frozen=True):
    """`GET /admin/v1/hosts/{id}/pages`."""

    host: str
    model: str
    page_size: int
    pages: dict[str, int]
    states: str
    owners: list[int]
    domains: list[DomainPages]
    pinned: int
    limbo_age_s: float
    generation: int


class Cell(NamedTuple):
    """What one place of the picture shows."""

    state: str
    owner: int


class Colours:
    """A domain's colour, the same from one picture to the next. There are fewer than domains.

    `plain`: there are none to be seen, and each domain has a letter instead.
    """

    def __init__(self, *, plain: bool = False) -> None:
        self.plain = plain
        self._left = cycle(zip(cycle(PALETTE), ascii_uppercase, strict=False))
        self._known: dict[str, tuple[str, str]] = {}

    def of(self, domain: str) -> str:
        """The domain's colour, from now on."""
        return self._of(domain)[0]

    def letter_of(self, domain: str) -> str:
        """The domain's letter, a capital, from now on."""
        return self._of(domain)[1]

    def _of(self, domain: str) -> tuple[str, str]:
        if domain not in self._known:
            self._known[domain] = next(self._left)
        return self._known[domain]


def draw(told: HostPages, colours: Colours, width: int, height: int) -> Group:
    """The whole picture, no higher than `height` unless that is very low."""
    largest = sorted(told.domains, key=lambda one: -sum(one.pages.values()))
    for domain in largest:
        colours.of(domain.domain)
    legend = _legend(told, largest, colours, width)
    lines = sum(-(-len(line) // width) for line in legend)
    found, per_cell = cells(told, width * max(LEAST_ROWS, height - lines - 2))
    title = Text(cut(f"{clean(told.model)} · {clean(told.host)}", max(1, width - 6)))
    return Group(
        Rule(title, style=QUIET, align="left"),
        *_picture(told, _rows(found, width), colours),
        _scale(told, per_cell),
        *legend,
    )


def cells(told: HostPages, most: int) -> tuple[list[Cell], int]:
    """At most so many cells, and the number of pages that each stands for."""
    total = len(told.states)
    per_cell = max(1, -(-total // most))
    found = [
        _cell(told.states[start : start + per_cell], told.owners[start : start + per_cell])
        for start in range(0, total, per_cell)
    ]
    return found, per_cell


def _cell(states: str, owners: Sequence[int]) -> Cell:
    if len(states) == 1:
        return Cell(BY_LETTER[states], owners[0])
    letter = "q" if "q" in states else Counter(states).most_common(1)[0][0]
    in_it = Counter(owner for state, owner in zip(states, owners, strict=True) if state == letter)
    return Cell(BY_LETTER[letter], in_it.most_common(1)[0][0])


def _rows(found: Sequence[Cell], width: int) -> list[Sequence[Cell]]:
    return [found[start : start + width] for start in range(0, len(found), width)]


def _picture(told: HostPages, rows: Sequence[Sequence[Cell]], colours: Colours) -> Iterator[Text]:
    """The rows, but a line for many that are free from end to end."""
    for is_free, run in groupby(rows, lambda row: all(cell.state == "free" for cell in row)):
        same = list(run)
        if is_free and len(same) >= FOLDED_FROM:
            yield Text(f"… {len(same)} rows free", QUIET, no_wrap=True, overflow="ellipsis")
        else:
            yield from (_row(told, row, colours) for row in same)


def _row(told: HostPages, row: Sequence[Cell], colours: Colours) -> Text:
    line = Text(no_wrap=True)
    for (state, owner), run in groupby(row):
        glyph = _glyph(told, state, owner, colours)
        line.append(glyph * len(list(run)), _style(told, state, owner, colours))
    return line


def _glyph(told: HostPages, state: str, owner: int, colours: Colours) -> str:
    if not colours.plain or owner == NOBODY or state in OF_NOBODY:
        return GLYPHS[state]
    letter = colours.letter_of(told.domains[owner].domain)
    return letter if state in IN_USE else letter.lower()


def _style(told: HostPages, state: str, owner: int, colours: Colours) -> str:
    if state == "quarantined":
        return ALARM
    return QUIET if owner == NOBODY else colours.of(told.domains[owner].domain)


def _scale(told: HostPages, per_cell: int) -> Text:
    pages = f"{count(len(told.states), 'page')} of {told.page_size} tokens"
    return Text(f"{pages}, {per_cell} a cell" if per_cell > 1 else pages, QUIET)


def _legend(
    told: HostPages, largest: Sequence[DomainPages], colours: Colours, width: int
) -> list[Text]:
    fences = f"pinned {told.pinned}, generation {told.generation}"
    if told.pages.get("retiring"):
        fences = f"given up and not yet free for {told.limbo_age_s:.1f} s, {fences}"
    lines = [*_states(told, colours, width), Text(fences, QUIET)]
    for domain in largest[:MAX_DOMAINS]:
        mark = colours.letter_of(domain.domain) if colours.plain else "■"
        lines.append(Text.assemble((f"{mark} ", colours.of(domain.domain)), _told(domain)))
    if (left := len(largest) - MAX_DOMAINS) > 0:
        lines.append(Text(f"and {count(left, 'domain')} more", QUIET))
    lines.append(Text(WORDS, QUIET))
    return lines


def _states(told: HostPages, colours: Colours, width: int) -> list[Text]:
    """How many pages are in which state, as many on a line as fit."""
    lines = [Text()]
    for state in GLYPHS:
        glyph = GLYPHS[state]
        number = told.pages.get(state, 0)
        style = ALARM if state == "quarantined" and number else "" if number else QUIET
        if colours.plain and state not in OF_NOBODY:
            glyph = "A" if state in IN_USE else "a"
        entry = Text(f"{glyph} {number} {state}", style)
        if lines[-1] and len(lines[-1]) + len(GAP) + len(entry) > width:
            lines.append(Text())
        lines[-1].append_text(Text(GAP) + entry if lines[-1] else entry)
    return lines


def _told(domain: DomainPages) -> str:
    numbers = ", ".join(f"{number} {state}" for state, number in domain.pages.items())
    youngest, oldest = span(domain.youngest_s), span(domain.oldest_s)
    ages = oldest if youngest == oldest else f"{youngest} to {oldest}"
    return f"{clean(domain.domain)}: {numbers}, for {ages}"


def refused(host: str, model: str, reason: str) -> RenderableType:
    """In place of the picture of a host that can't tell."""
    return Text(f"{clean(model)} · {clean(host)}: {clean(reason)}", QUIET)
