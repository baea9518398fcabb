"""Random lives of requests of several domains, whatever comes between two parts of a step."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from engines.api import EngineFailed
from tests.engines import draft_mutants, mutants
from tests.engines.world import DEEDS, DOMAINS, POINTS, World, random_request
from tests.stack import SOAK

CHECKS = 10_000_000 if SOAK else 300_000  # of a page by the check of tags
DOMAIN = st.sampled_from(DOMAINS)
# Few different tokens: most prompts share a prefix with an earlier one, many of whole pages.
PROMPT = st.one_of(
    st.lists(st.integers(0, 1), min_size=1, max_size=9),
    st.integers(1, 8).map(lambda length: ([0, 1, 1] * 3)[:length]),
)
NUMBER = st.integers(0, 7)
DEED = st.sampled_from(DEEDS)


class EngineMachine(RuleBasedStateMachine):
    """Launches, executes and lands steps, and does anything else in between."""

    @initialize(
        max_batch_tokens=st.sampled_from([3, 12]),
        num_pages=st.sampled_from([16, 24]),
        integrity=st.sampled_from(["enforce", "observe", "off"]),
        speculation=st.sampled_from([0, 1, 5]),
    )
    def start(
        self, max_batch_tokens: int, num_pages: int, integrity: str, speculation: int
    ) -> None:
        self.world = World(
            num_pages,
            max_batch_tokens=max_batch_tokens,
            max_running=3,
            integrity=integrity,
            speculation=speculation,
        )

    @rule(domain=DOMAIN, prompt=PROMPT, max_tokens=st.integers(1, 6))
    def submit(self, domain: str, prompt: list[int], max_tokens: int) -> None:
        self.world.submit(domain, prompt, max_tokens)

    @rule()
    def launch(self) -> None:
        self.world.launch()

    @rule()
    def execute(self) -> None:
        self.world.execute()

    @rule(point=st.sampled_from(POINTS), deed=DEED, number=NUMBER)
    def execute_meanwhile(self, point: str, deed: object, number: int) -> None:
        self.world.execute(point, lambda: deed(self.world, number))  # type: ignore[operator]

    @rule()
    def land(self) -> None:
        self.world.land()

    @rule(deed=DEED, number=NUMBER)
    def do(self, deed: object, number: int) -> None:
        deed(self.world, number)  # type: ignore[operator]

    @rule(domain=DOMAIN, prompt=PROMPT)
    def open(self, domain: str, prompt: list[int]) -> None:
        self.world.open(domain, prompt)

    @rule(number=NUMBER)
    def spoil(self, number: int) -> None:
        self.world.spoil(number)

    @rule()
    def change_weights(self) -> None:
        self.world.change_weights()

    @invariant()
    def all_holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


def test_no_row_ever_reads_a_slot_that_is_not_its_own() -> None:
    """Books balance, sealed pages stay as they are, and all that was begun comes to its end."""
    run_state_machine_as_test(
        EngineMachine,
        settings=settings(max_examples=3000 if SOAK else 60, stateful_step_count=60, deadline=None),
    )


def test_the_check_never_stops_a_row_of_a_sound_pool() -> None:
    """Long contexts, many rows, a pool that is always full; every slot that is read is right."""
    chance = random.Random(0)
    world = World(900, 2, spoilable=0, max_batch_tokens=256, max_running=32)
    while world.engine.verifier.pages_checked < CHECKS:
        if len(world.engine._seqs) < 40:
            world.submit(*random_request(chance.randrange(10**9), 250, 150))
        if chance.random() < 0.1:
            chance.choice(DEEDS)(world, chance.randrange(8))
        for step in (world.launch, world.execute, world.land):
            if chance.random() < 0.8:
                step()
        if chance.random() < 0.05:
            world.check()
    world.finish()
    assert world.engine.stats().tag_mismatches == 0
    assert world.engine.stats().preempted > 0


@pytest.mark.parametrize(
    "mutant",
    [
        mutants.no_step_fence,
        mutants.no_transfer_fence,
        mutants.notice_counts_as_drained,
        mutants.evicts_held_pages_unasserted,
        mutants.releases_twice,
        mutants.does_not_wipe,
        mutants.leaves_the_domain_out_of_the_key,
        mutants.compares_no_domain_anywhere,
        mutants.reads_the_tag_at_share,
        mutants.does_not_copy_on_write,
        mutants.seals_at_launch,
        mutants.does_not_ask_who_is_live,
        draft_mutants.counts_rejected_drafts,
        draft_mutants.seals_rejected_drafts,
        draft_mutants.keys_pages_by_their_drafts,
        draft_mutants.goes_on_behind_drafts,
        draft_mutants.takes_drafts_unseen,
    ],
)
def test_such_lives_would_show_a_mistake(
    mutant: mutants.Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What such lives find is worth no more than what they would find."""

    def live() -> None:
        for seed in range(100):
            chance, world = random.Random(seed), World(20, max_running=3, speculation=seed % 4)
            mutant(world.engine, monkeypatch)
            for _ in range(100):
                _any_deed(world, chance)
                world.check()
            world.finish()

    with pytest.raises((AssertionError, EngineFailed, ValueError, IndexError)):
        live()


def _any_deed(world: World, chance: random.Random) -> None:
    act, number = chance.choice(DEEDS), chance.randrange(8)
    what = chance.randrange(6)
    if what == 0:
        world.submit(*random_request(chance.randrange(100), 9, 6))
    elif what == 1:
        act(world, number)
    elif what == 2:
        world.execute(chance.choice(POINTS), lambda: act(world, number))
    else:
        (world.launch, world.execute, world.land)[what - 3]()
