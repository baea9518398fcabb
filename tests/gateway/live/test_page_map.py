"""The picture of a page pool: every page or an honest sum, in whatever room there is."""

from __future__ import annotations

import random
from collections import Counter
from io import StringIO

import pytest
from rich.console import Console

from gateway.live.page_map import GLYPHS, Colours, DomainPages, HostPages, cells, draw

LETTERS = {state[0]: state for state in GLYPHS}


def host(states: str, owners: list[int], **changes: object) -> HostPages:
    numbers = Counter(LETTERS[letter] for letter in states)
    named = sorted({owner for owner in owners if owner >= 0})
    domains = [
        DomainPages(
            domain=f"domain{owner:02}",
            pages=dict(
                Counter(LETTERS[s] for s, o in zip(states, owners, strict=True) if o == owner)
            ),
            youngest_s=1.0,
            oldest_s=300.0,
        )
        for owner in named
    ]
    given: dict[str, object] = {"pinned": 0, "limbo_age_s": 0.0, "generation": 77} | changes
    return HostPages(
        host="host-1",
        model="smol",
        page_size=16,
        pages=dict(numbers),
        states=states,
        owners=owners,
        domains=domains,
        **given,  # type: ignore[arg-type]
    )


def shown(
    told: HostPages,
    width: int = 80,
    height: int = 24,
    *,
    colour: bool = False,
    plain: bool = False,
) -> str:
    file = StringIO()
    console = Console(
        file=file,
        width=width,
        height=height,
        force_terminal=colour,
        color_system="standard" if colour else None,
    )
    console.print(draw(told, Colours(plain=plain), width, height))
    return file.getvalue()


SMALL = host("aasccr!".replace("!", "q") + "f" * 93, [0, 0, 0, 1, 1, 1, -1] + [-1] * 93)


def test_a_small_pool_is_shown_page_by_page() -> None:
    lines = shown(SMALL).splitlines()
    assert "smol · host-1" in lines[0]
    assert lines[1] == "██▓░░~!" + "·" * 73
    assert lines[2] == "·" * 20
    assert lines[3] == "100 pages of 16 tokens"
    legend = "\n".join(lines[4:])
    for told in ("█ 2 active", "▓ 1 sealed", "░ 2 cached", "~ 1 retiring", "! 1 quarantined"):
        assert told in legend
    assert "■ domain00: 2 active, 1 sealed, for 1 s to 5 min" in legend


def test_fences_are_told_while_something_waits_for_them() -> None:
    told = shown(host("r", [0], limbo_age_s=2.34, pinned=3))
    assert "given up and not yet free for 2.3 s, pinned 3, generation 77" in told
    assert "given up" not in shown(host("a", [0]))


@pytest.mark.parametrize("size", [1, 79, 80, 81, 1000, 100_000])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (20, 5), (200, 60)])
def test_any_pool_fits_any_terminal(size: int, width: int, height: int) -> None:
    draws = random.Random(size)
    states = "".join(draws.choices("facsr", k=size))
    owners = [draws.randrange(9) if state != "f" else -1 for state in states]
    told = host(states, owners)
    lines = shown(told, width, height).splitlines()
    assert max(map(len, lines)) <= width
    found, per_cell = cells(told, width * 10)
    assert len(found) <= width * 10
    assert (len(found) - 1) * per_cell < size <= len(found) * per_cell
    if width >= 80:
        assert len(lines) <= height


def test_a_cell_of_many_pages_shows_most_of_them_and_always_a_quarantined_one() -> None:
    told = host("ffffcccaffqf", [-1] * 4 + [0, 1, 1, 2] + [-1] * 4)
    found, per_cell = cells(told, 3)
    assert per_cell == 4
    assert [tuple(cell) for cell in found] == [("free", -1), ("cached", 1), ("quarantined", -1)]


def test_a_domain_keeps_its_colour_when_others_come() -> None:
    colours = Colours()
    first = colours.of("a")
    others = {colours.of(name) for name in "bcd"}
    assert colours.of("a") == first
    assert first not in others
    assert "\x1b[36m██" in shown(host("aa", [0, 0]), colour=True)


def test_only_the_largest_domains_are_named() -> None:
    told = host("a" * 10, list(range(10)))
    assert "and 4 domains more" in shown(told)


def test_what_a_terminal_would_obey_is_not_passed_on() -> None:
    told = HostPages("h\x1b[2J", "m", 16, {"free": 1}, "f", [-1], [], 0, 0.0, 1)
    assert "\x1b" not in shown(told)


def test_without_colours_domains_are_letters() -> None:
    told = shown(host("lascrzqf", [0, 0, 1, 1, 0, 0, -1, -1]), plain=True)
    lines = told.splitlines()
    assert lines[1] == "AABbaa!·"
    assert "A domain00: " in told
    assert "B domain01: " in told
    assert "A 1 active" in told
    assert "a 1 cached" in told
    assert "■" not in told


def test_there_are_letters_for_any_number_of_domains() -> None:
    told = shown(host("a" * 60, list(range(60))), plain=True)
    assert told.splitlines()[1].isalpha()


def test_rows_that_are_free_are_folded() -> None:
    lines = shown(host("a" + "f" * 799, [0] + [-1] * 799)).splitlines()
    assert lines[1].startswith("█·")
    assert lines[2] == "… 9 rows free"
    assert lines[3] == "800 pages of 16 tokens"


def test_the_words_are_explained_and_ages_that_are_the_same_are_told_once() -> None:
    same = host("a", [0])
    domain = DomainPages("d", {"active": 1}, youngest_s=0.1, oldest_s=0.4)
    told = shown(
        HostPages(
            "h",
            "m",
            16,
            {"active": 1},
            "a",
            same.owners,
            [domain],
            pinned=0,
            limbo_age_s=0.0,
            generation=1,
        )
    )
    assert "d: 1 active, for 0 s\n" in told
    assert "a domain: a tenant's pseudonym" in told
