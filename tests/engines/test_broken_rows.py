"""Rows that go wrong in ways that tags alone don't show: they end, and nobody else notices."""

from __future__ import annotations

from collections import deque
from functools import partial

import numpy as np
import pytest

from engines.api import FinishReason, KvIntegrityAbort
from engines.embedded.batch import Batch
from engines.embedded.engine import EmbeddedEngine
from engines.embedded.pages import State
from engines.embedded.public import PublicPrompts
from engines.embedded.seq import Seq
from tests.engines.books import check_books, tables_of
from tests.engines.conftest import EngineFactory
from tests.engines.gate import Gate
from tests.engines.helpers import Answers, ask, drive, random_prompt

ON_BOTH_BACKENDS = True


@pytest.fixture(params=[True, False], ids=["overlap", "in turn"])
def make(request: pytest.FixtureRequest, make_faulty: EngineFactory) -> EngineFactory:
    return partial(make_faulty, overlap=request.param)


def seq_of(engine: EmbeddedEngine, id: str) -> Seq:
    return next(seq for seq in engine.scheduler.running if seq.request.id == id)


def finish(engine: EmbeddedEngine, answers: Answers) -> None:
    while engine.has_work():
        answers.take(engine.step())


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "top_p": 0.9}], ids=str)
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_numbers_that_are_not_finite_stop_their_row_alone(
    make: EngineFactory, sampling: dict[str, float], number: float
) -> None:
    """Its token would mean nothing; the neighbour's answer is what it is alone."""
    engine = make(prefix_cache=False)
    clean = drive(make(prefix_cache=False), ask("b", random_prompt(9, 2), 12, domain="b"))
    engine.add(ask("a", random_prompt(9, 1), 12, domain="a", seed=3, **sampling))
    engine.add(ask("b", random_prompt(9, 2), 12, domain="b"))
    answers = Answers()
    for _ in range(3):
        answers.take(engine.step())
    page = seq_of(engine, "a").block_table[0]
    engine.kv.bytes_of(page).view(np.float32)[:] = number
    finish(engine, answers)
    assert isinstance(answers.last("a").error, KvIntegrityAbort)
    assert answers.tokens("b") == clean.tokens("b")
    assert engine.pool.states[page] == State.QUARANTINED


def test_a_copy_goes_nowhere_but_where_the_row_writes(make: EngineFactory) -> None:
    """A copying row whose slots point at another's page is stopped before the copy."""
    prompt = random_prompt(8, 3)
    clean = drive(make(), ask("b", random_prompt(9, 2), 12, domain="b"))
    engine = make()
    drive(engine, ask("first", prompt, 1, domain="a"))
    engine.add(ask("b", random_prompt(9, 2), 12, domain="b"))
    answers = Answers()
    answers.take(engine.step())
    foreign = seq_of(engine, "b").block_table[-1]

    def astray(point: str, batch: Batch) -> None:
        if point == "launched" and len(batch.copy_rows):
            batch.slot_mapping[batch.token_rows == batch.copy_rows[0]] = foreign * 4

    engine.runway.at = astray
    engine.add(ask("again", prompt, 4, domain="a"))
    finish(engine, answers)
    assert engine.stats().mismatches == {"before/slot": 1}
    assert answers.tokens("b") == clean.tokens("b")


def test_what_a_row_wrote_past_the_fences_is_nobodys_to_read(make_faulty: EngineFactory) -> None:
    """Its page was freed under it and is another's by now: that one is stopped, too."""
    engine = make_faulty(prefix_cache=False)
    for seed, id in enumerate("ab"):
        engine.add(ask(id, random_prompt(9, seed), 12, domain=id))
    gate = Gate(engine, "checked", 5)
    answers = Answers()
    gate.drive_to(answers)
    page = seq_of(engine, "a").block_table[-1]
    engine.pool.last_steps[page] = 0  # the fence is lost
    engine.pool.release(page)
    engine.pool.recycle()
    thief = seq_of(engine, "b")
    engine.pool._free.remove(page)
    engine.pool._free.append(page)
    thief.hold(engine.pool.allocate("b", thief.serial))
    assert thief.block_table[-1] == page
    gate.open()
    finish(engine, answers)
    assert isinstance(answers.last("a").error, KvIntegrityAbort)
    assert engine.pool.states[page] == State.QUARANTINED


def test_a_free_page_that_was_written_late_is_not_given_out(make_faulty: EngineFactory) -> None:
    """It was wiped before the write: it goes out of use."""
    engine = make_faulty(prefix_cache=False)
    engine.add(ask("a", random_prompt(9, 0), 12))
    gate = Gate(engine, "checked", 5)
    answers = Answers()
    gate.drive_to(answers)
    page = seq_of(engine, "a").block_table[-1]
    engine.pool.last_steps[page] = 0
    engine.pool.release(page)
    engine.pool.recycle()
    assert engine.pool.states[page] == State.FREE
    gate.open()
    finish(engine, answers)
    assert engine.pool.states[page] == State.QUARANTINED
    check_books(engine.pool, tables_of(engine))


def test_domain_slots_that_run_out_are_waited_for(make: EngineFactory) -> None:
    """Those of retiring pages come back, and a public prompt needs two of them."""
    engine = make()
    engine.pool.domains._free_slots = deque([1, 2])
    engine._public = PublicPrompts([random_prompt(8, 1)], 4)
    public = random_prompt(8, 1)
    answers = drive(
        engine,
        ask("a", [*public, 5], 4, domain="a"),
        ask("b", random_prompt(6, 2), 4, domain="b"),
        ask("c", [*public, 6], 4, domain="c"),
        ask("d", random_prompt(6, 3), 4, domain="d"),
    )
    assert {answers.last(id).finish for id in "abcd"} == {FinishReason.LENGTH}


def test_slots_of_aborted_requests_come_back(make: EngineFactory) -> None:
    """A request of a new domain waits for the step that still touches their pages."""
    engine = make(prefix_cache=False)
    engine.pool.domains._free_slots = deque([1, 2])
    for id in "xy":
        engine.add(ask(id, random_prompt(9, 1), 12, domain=id))
    for _ in range(3):
        engine.step()
    engine.abort("x")
    engine.abort("y")
    answers = drive(engine, ask("z", random_prompt(9, 2), 4, domain="z"))
    assert answers.last("z").finish is FinishReason.LENGTH


def test_a_retry_is_told_that_nothing_of_it_was_cached(make_faulty: EngineFactory) -> None:
    """And so say the counters: the first attempt's hits served nobody."""
    engine = make_faulty(max_batch_tokens=8, max_running=4, overlap=False)
    prompt = random_prompt(40, 1)
    drive(engine, ask("first", prompt[:17], 1))
    engine.add(ask("x", prompt, 4))
    answers = Answers()
    answers.take(engine.step())
    seq_of(engine, "x").tags[-1] += 1
    finish(engine, answers)
    told = [o.cached_tokens for o in answers.outputs["x"] if o.cached_tokens is not None]
    assert told == [16, 0]
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.cached_tokens) == (57, 0)


def test_what_a_condemned_row_had_shared_is_found_by_nobody_else(
    make_faulty: EngineFactory,
) -> None:
    """Who reads it already goes on."""
    engine = make_faulty(overlap=False)
    prompt = random_prompt(17, 3)
    engine.add(ask("writer", prompt, 12))
    engine.step()
    engine.add(ask("reader", prompt, 12))
    answers = Answers()
    answers.take(engine.step())
    assert answers.cached("reader") == 16
    seq_of(engine, "writer").tags[4] += 1
    answers.take(engine.step())
    late = drive(engine, ask("late", prompt, 2))
    answers.outputs |= {"reader": answers.outputs["reader"] + late.outputs["reader"]}
    assert late.cached("late") == 0
    assert answers.last("reader").finish is FinishReason.LENGTH


def test_after_an_incident_nothing_is_cached_any_more(make_faulty: EngineFactory) -> None:
    """What still runs leaves nothing behind, and no load is taken in."""
    engine = make_faulty(overlap=False)
    for id in "ab":
        engine.add(ask(id, random_prompt(9, 1), 12, domain=id))
    for _ in range(3):
        engine.step()
    thief, owner = seq_of(engine, "a"), seq_of(engine, "b")
    thief.block_table[1], thief.tags[1] = owner.block_table[1], owner.tags[1]
    drive(engine)
    assert engine.retirement
    assert engine.stats().pages["cached"] == 0
