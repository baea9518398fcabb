"""The ledger beside a simulated TensorRT-LLM: no false alarm, and what is planted is caught.

`harmed` is who read a slot that another salt wrote; `confused`, who read what says something else;
`misled`, who did both where a hit has to be taken on trust: see `Memory.trust`.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from engines.trtllm import violations as kinds
from engines.trtllm.roll import MOST_DEPARTED
from tests.engines.trtllm.lives import OPENINGS, SALTS, SETUPS, Lives
from tests.engines.trtllm.plants import CAUGHT, UNSEEN, Planted
from tests.engines.trtllm.setups import Setup
from tests.stack import SOAK

STEPS = 1_000_000 if SOAK else 4_400  # in all setups together
SEEDS = 100 if SOAK else 4
NUMBER = st.integers(0, 9)


@pytest.mark.parametrize("name", SETUPS)
def test_a_sound_run_is_never_told_of(name: str) -> None:
    setup = SETUPS[name]
    lives = Lives(setup, seed=7, num_ids=30 if setup.tables else 0)
    executor = lives.executor
    for _ in lives.steps(STEPS // len(SETUPS)):
        assert not executor.harmed
        assert not executor.confused
        assert executor.told == []
        assert executor.shadow.num_remembered <= MOST_DEPARTED + setup.num_blocks
    assert executor.shadow.counters.steps == STEPS // len(SETUPS)
    assert executor.shadow.counters.checked > 10 * executor.shadow.counters.steps


@pytest.mark.parametrize("name", SETUPS)
def test_such_runs_have_all_that_makes_them_hard(name: str) -> None:
    """Hits, hits within a block, evictions, cancels, and rows that are in no step for a while."""
    setup = SETUPS[name]
    lives = Lives(setup, seed=7)
    hits = parts = times_away = 0
    for _ in lives.steps(300):
        times_away += lives.executor.num_run < len(lives.executor.running)
        reused = [request.reused for request in lives.executor.running]
        hits += any(reused)
        parts += any(tokens % setup.size for tokens in reused)
    assert times_away > 20
    assert lives.executor.num_cancelled > 5
    assert hits > 20 or not setup.reuses
    assert parts > 2 or not setup.reuses


@pytest.mark.parametrize("name", CAUGHT)
def test_whoever_reads_what_is_not_its_own_is_told_of_by_then(name: str) -> None:
    was_harmful = was_told = 0
    for seed in range(SEEDS):
        lives = _planted(CAUGHT[name], seed)
        for _ in lives.steps(120):
            executor = lives.executor
            assert executor.warned.issuperset(executor.harmed + executor.confused)
            was_harmful += bool(executor.harmed or executor.confused)
            lives.end_blamed()
        was_told += bool(executor.told)
    assert was_told
    assert was_harmful or name in HARMLESS


# What is told here is told before anybody reads what it shouldn't.
HARMLESS = [name for name in CAUGHT if "outside" in name] + ["never grows"]


@pytest.mark.parametrize("name", CAUGHT)
def test_beside_the_overlap_scheduler_it_is_told_of_as_well(name: str) -> None:
    """But for a last token, which isn't known yet: see `UNSEEN`."""
    for seed in range(SEEDS):
        planted = CAUGHT[name]
        lives = _planted(planted._replace(setup=replace(planted.setup, overlaps=True)), seed)
        for _ in lives.steps(120):
            executor = lives.executor
            leaked = set(executor.harmed) & set(executor.confused)
            assert executor.warned >= leaked
            lives.end_blamed()


@pytest.mark.parametrize("name", UNSEEN)
def test_what_no_connector_can_see_is_not_told(name: str) -> None:
    """If this fails, the docs say too little of the guard."""
    was_harmful = 0
    for seed in range(SEEDS):
        lives = _planted(UNSEEN[name], seed)
        for _ in lives.steps(120):
            if harmed := set(lives.executor.harmed + lives.executor.misled):
                assert not lives.executor.warned.issuperset(harmed)
                was_harmful += 1
                break
    assert was_harmful


def test_a_list_that_changed_in_place_is_told_of_at_its_end() -> None:
    """By then its answer is made."""
    told = [
        violation.kind
        for seed in range(20)
        for violation in _run(_planted(UNSEEN["a foreign block in place"], seed))
    ]
    assert kinds.REPLACED in told


def test_what_ids_that_come_again_hide_is_told_of() -> None:
    """The guard says that it is blind, though nothing is wrong: so pausing isn't let pass."""
    told = [_run(Lives(Setup(pauses=True), seed, num_ids=10)) for seed in range(10)]
    assert {violations[0].kind for violations in told if violations} == {kinds.HIDDEN}


def _planted(planted: Planted, seed: int) -> Lives:
    """A sound run for 30 steps, and then the plant."""
    lives = Lives(planted.setup, seed)
    for _ in lives.steps(30):
        assert lives.executor.told == []
    planted.plant(lives.executor, lives.chance)
    return lives


def _run(lives: Lives) -> list[kinds.Violation]:
    for _ in lives.steps(200):
        pass
    return lives.executor.told


class GuardMachine(RuleBasedStateMachine):
    """Steps, and whatever Hypothesis thinks of between them."""

    @initialize(name=st.sampled_from(sorted(SETUPS)), seed=st.integers(0, 999))
    def start(self, name: str, seed: int) -> None:
        self.lives = Lives(SETUPS[name], seed)
        self.executor = self.lives.executor
        self.is_planted = False
        self.next_id = 0

    @rule(
        salt=st.sampled_from(SALTS),
        opening=st.sampled_from(OPENINGS),
        length=st.integers(1, 40),
        rest=st.lists(st.integers(0, 1), max_size=4),
        max_tokens=st.integers(1, 12),
    )
    def submit(
        self, salt: str, opening: list[int], length: int, rest: list[int], max_tokens: int
    ) -> None:
        self.next_id += 1
        self.executor.submit(self.next_id, salt, opening[:length] + rest, max_tokens)

    @rule(number=NUMBER)
    def cancel(self, number: int) -> None:
        if self.executor.running:
            self.executor.cancel(self.executor.running[number % len(self.executor.running)])

    @rule()
    def fail_all(self) -> None:
        self.executor.fail_all()

    @rule()
    def pause(self) -> None:
        if self.executor.setup.pauses and self.executor.running:
            self.lives.pause()

    @rule(steps=st.integers(1, 8))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.executor.step()
            self.is_right()

    @rule(name=st.sampled_from(sorted(CAUGHT)), seed=st.integers(0, 999))
    def plant(self, name: str, seed: int) -> None:
        """Not beside the overlap scheduler, of which less is promised."""
        setup, needs = self.executor.setup, CAUGHT[name].setup
        if setup.window or setup.overlaps:
            return
        if needs.partial <= setup.partial and needs.tables <= setup.tables:
            CAUGHT[name].plant(self.executor, random.Random(seed))
            self.is_planted = True

    @invariant()
    def is_right(self) -> None:
        if not hasattr(self, "executor"):
            return
        assert self.executor.warned.issuperset(self.executor.harmed + self.executor.confused)
        if not self.is_planted:
            assert self.executor.told == []
            assert not self.executor.harmed


def test_whatever_happens_nobody_reads_anothers_untold() -> None:
    run_state_machine_as_test(
        GuardMachine,
        settings=settings(max_examples=3000 if SOAK else 40, stateful_step_count=40, deadline=None),
    )
