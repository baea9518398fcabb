"""Why fences, a check before and a check after: what each of them is for, and what it isn't.

Each cell of the two tables is a walk through every order of events. They are the tables of
docs/integrity.md, which says what its words mean.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.engines.protocol.model import A_READS_B, B_CORRUPT, Model, Policy, World, explore

DOC = Path(__file__).parents[3] / "docs" / "integrity.md"

WORLDS = {
    "B's steps fill": World(),
    "another writer fills": World(other_writer=True),
    "+ old transfer": World(other_writer=True, old_transfer=True),
    "+ early free": World(other_writer=True, freed_early=True),
    "+ free past the fences": World(other_writer=True, freed_early=True, fence_bypassed=True),
    "+ that and old transfer": World(
        other_writer=True, freed_early=True, fence_bypassed=True, old_transfer=True
    ),
}
ONE_EXECUTOR = """
| nothing | safe | both | both | both | both | both |
| enqueue | safe | both | both | both | both | both |
| before | safe | both | both | both | both | both |
| before, after | safe | corrupt | corrupt | corrupt | corrupt | corrupt |
| before, after, poison | safe | safe | corrupt | safe | safe | corrupt |
| before, after, poison, landing | safe | safe | safe | safe | safe | safe |
| step fence, before, after | safe | safe | corrupt | safe | corrupt | corrupt |
| step fence, before, after, landing | safe | safe | safe | safe | corrupt | corrupt |
| fences | safe | safe | safe | both | both | both |
| fences, before | safe | safe | safe | safe | both | both |
| fences, before, after | safe | safe | safe | safe | corrupt | corrupt |
| fences, before, after, poison | safe | safe | safe | safe | safe | corrupt |
| fences, before, after, mirror | safe | safe | safe | safe | both | both |
"""
TWO_EXECUTORS = """
| nothing | both | both | both | both | both | both |
| enqueue | both | both | both | both | both | both |
| before | both | both | both | both | both | both |
| before, after | corrupt | corrupt | corrupt | corrupt | corrupt | corrupt |
| before, after, poison | corrupt | corrupt | corrupt | corrupt | corrupt | corrupt |
| before, after, poison, landing | corrupt | corrupt | corrupt | corrupt | corrupt | corrupt |
| step fence, before, after | safe | safe | corrupt | safe | corrupt | corrupt |
| step fence, before, after, landing | safe | safe | safe | safe | corrupt | corrupt |
| fences | safe | safe | safe | both | both | both |
| fences, before | safe | safe | safe | safe | both | both |
| fences, before, after | safe | safe | safe | safe | corrupt | corrupt |
| fences, before, after, poison | safe | safe | safe | safe | corrupt | corrupt |
"""
WORDS: dict[str, set[str]] = {
    "safe": set(),
    "corrupt": {B_CORRUPT},
    "both": {A_READS_B, B_CORRUPT},
}
MACHINES = {
    "one": (ONE_EXECUTOR, World()),
    "one, in overlap": (ONE_EXECUTOR, World(overlap=True)),
    "two": (TWO_EXECUTORS, World(executors=2)),
}


Case = tuple[str, World, str]


def cases() -> dict[str, Case]:
    """Of each cell: measures, world, and what comes of it."""
    found: dict[str, Case] = {}
    for machine, (table, shape) in MACHINES.items():
        for measures, *words in rows(table):
            for (column, world), word in zip(WORLDS.items(), words, strict=True):
                there = replace(world, executors=shape.executors, overlap=shape.overlap)
                found[f"{machine}-{measures}-{column}"] = (measures, there, word)
    return found


def rows(table: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in table.strip().splitlines()]


def policy(measures: str) -> Policy:
    """Read the words of a row; "fences" are both of them."""
    words = measures.replace("nothing", "").replace("fences", "step fence, transfer fence")
    fields = [word.replace(" ", "_") for word in words.split(", ") if word]
    return Policy(**dict.fromkeys(fields, True))


def published(measures: str, world: World) -> dict[str, list[str]]:
    return explore(Model(world, policy(measures)))


@pytest.mark.parametrize(("measures", "world", "word"), cases().values(), ids=cases())
def test_every_order_of_events(measures: str, world: World, word: str) -> None:
    """Both requests can also come to their right end: nothing is safe by standing still."""
    assert published(measures, world).keys() == WORDS[word] | {"A", "B"}


def test_a_check_before_is_no_use_to_a_step_that_already_runs() -> None:
    """Nor does B's own check help B: the tag is right, the bytes are A's."""
    found = published("before", WORLDS["another writer fills"])
    overtaken = ["A enqueues", "A is aborted", "A: verify", "free", "allocate for B"]
    late = ["A: read", "A: append", "A: publish"]
    assert found[A_READS_B] == [*overtaken, "B is refilled", *late]
    assert found[B_CORRUPT] == [
        *[*overtaken, "B is refilled", "B enqueues", *late],
        *["B: verify", "B: read", "B: publish"],
    ]


def test_a_check_after_withholds_what_was_read_and_cannot_undo_what_was_written() -> None:
    way = published("before, after", WORLDS["another writer fills"])[B_CORRUPT]
    withheld = way.index("A: verify again, fails")
    assert way.index("A: append") < withheld < way.index("B: verify") < way.index("B: publish")


def test_a_fence_is_no_use_to_who_does_not_know_that_it_lost_its_page() -> None:
    """Freed while nothing of A is under way: the fence holds, and A comes back."""
    way = published("fences", WORLDS["+ early free"])[A_READS_B]
    assert way[:3] == ["the page is freed too early", "free", "A enqueues"]


def test_a_mirror_in_the_order_of_the_steps_shows_what_was_when_they_were_queued() -> None:
    """So that after must compare the pool's own tags; before may compare the mirror's."""
    past_fences = WORLDS["+ free past the fences"]
    way = published("fences, before, after, mirror", past_fences)[A_READS_B]
    assert "A: verify again" in way
    assert A_READS_B not in published("fences, before, after", past_fences)
    for world in WORLDS.values():
        if not world.fence_bypassed:
            assert published("fences, before, mirror", world).keys() == {"A", "B"}


@pytest.mark.parametrize("executors", [1, 2])
@pytest.mark.parametrize("dropped", ["step fence", "transfer fence", "before"])
def test_each_of_fences_and_before_is_needed_and_together_they_suffice(
    dropped: str, executors: int
) -> None:
    needed = ["step fence", "transfer fence", "before"]
    left = ", ".join(measure for measure in needed if measure != dropped)
    worlds = [
        replace(world, executors=executors) for world in WORLDS.values() if not world.fence_bypassed
    ]
    assert all(published(", ".join(needed), world).keys() == {"A", "B"} for world in worlds)
    assert any(published(left, world).keys() != {"A", "B"} for world in worlds)


@pytest.mark.parametrize("table", [ONE_EXECUTOR, TWO_EXECUTORS], ids=["one", "two"])
def test_the_tables_are_those_of_the_docs(table: str) -> None:
    text = DOC.read_text()
    assert table.strip() in text.replace("**", "")
    assert f"| {' | '.join(WORLDS)} |" in text
