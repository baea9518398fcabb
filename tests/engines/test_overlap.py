"""Steps that overlap: what happens to a request while a step that computes it is on its way."""

from __future__ import annotations

import pytest
import xxhash

from engines.api import Request
from engines.embedded.door import LoadRefused
from engines.embedded.engine import EmbeddedEngine
from engines.embedded.pages import State
from engines.embedded.seq import Seq
from tests.engines.books import check_books, tables_of
from tests.engines.conftest import EngineFactory
from tests.engines.gate import Gate
from tests.engines.helpers import Answers, ask, drive, random_prompt

ON_BOTH_BACKENDS = True

STEP = 5
POINTS = ["launched", "checked", "computed"]


def pair() -> list[Request]:
    return [ask(id, random_prompt(9, seed), 12, domain=id) for seed, id in enumerate("ab")]


def seq_of(engine: EmbeddedEngine, id: str) -> Seq:
    return next(seq for seq in engine.scheduler.running if seq.request.id == id)


def held(make_tiny: EngineFactory, point: str, **options: object) -> tuple[EmbeddedEngine, Gate]:
    """An engine whose fifth step stands at the point, with two requests in it."""
    engine = make_tiny(prefix_cache=False, **options)
    for request in pair():
        engine.add(request)
    return engine, Gate(engine, point, STEP)


def finish(engine: EmbeddedEngine, answers: Answers) -> None:
    while engine.has_work():
        answers.take(engine.step())
    check_books(engine.pool, tables_of(engine))


@pytest.mark.parametrize("point", POINTS)
def test_pages_of_an_aborted_request_wait_for_the_step(
    make_tiny: EngineFactory, point: str
) -> None:
    """Nothing of it follows, nobody gets its pages before the step has ended, others go on."""
    clean = drive(make_tiny(prefix_cache=False), *pair())
    engine, gate = held(make_tiny, point)
    answers = Answers()
    gate.drive_to(answers)
    before = len(answers.tokens("a"))
    pages = list(seq_of(engine, "a").block_table)
    engine.abort("a")
    engine.pool.recycle()
    assert {State(engine.pool.states[page]) for page in pages} == {State.RETIRING}
    gate.open()
    finish(engine, answers)
    assert answers.tokens("b") == clean.tokens("b")
    assert len(answers.tokens("a")) == before
    assert {State(engine.pool.states[page]) for page in pages} == {State.FREE}
    assert engine.stats().tag_mismatches == 0


@pytest.mark.parametrize("point", POINTS)
def test_who_is_preempted_in_mid_step_answers_the_same(
    make_tiny: EngineFactory, point: str
) -> None:
    """What the step yields for it is void; it is computed again, to the same token."""
    clean = drive(make_tiny(prefix_cache=False), *pair())
    engine, gate = held(make_tiny, point)
    answers = Answers()
    gate.drive_to(answers)
    engine.scheduler._preempt(seq_of(engine, "a"))
    gate.open()
    finish(engine, answers)
    for id in "ab":
        assert answers.tokens(id) == clean.tokens(id)
    assert engine.stats().tag_mismatches == 0


@pytest.mark.parametrize("point", POINTS)
def test_who_comes_in_mid_step_is_given_other_pages(make_tiny: EngineFactory, point: str) -> None:
    """An abort and a new request at once, in a pool that is nearly full: the new one waits."""
    engine, gate = held(make_tiny, point, num_pages=13)
    answers = Answers()
    gate.drive_to(answers)
    pages = set(seq_of(engine, "a").block_table)
    engine.abort("a")
    engine.add(ask("c", random_prompt(24, 7), 8, domain="c"))
    engine._launch()
    for seq in engine.scheduler.running:
        assert not pages & set(seq.block_table)
    gate.open()
    finish(engine, answers)
    alone = drive(make_tiny(prefix_cache=False), ask("c", random_prompt(24, 7), 8, domain="c"))
    assert answers.tokens("c") == alone.tokens("c")


@pytest.mark.parametrize("point", POINTS)
def test_another_process_is_not_given_pages_that_a_step_may_touch(
    make_tiny: EngineFactory, point: str
) -> None:
    """It would fill them behind its back: the load waits for other pages, or for the step."""
    prompt = random_prompt(16, 3)
    source = make_tiny()
    drive(source, ask("x", prompt, 1))
    found = source.tables.prefix.match(source.tables.keys_of("c", prompt))
    assert not found
    engine = make_tiny(num_pages=11)
    for request in pair():
        engine.add(request)
    gate = Gate(engine, point, STEP)
    answers = Answers()
    gate.drive_to(answers)
    engine.abort("a")
    with pytest.raises(LoadRefused, match="no room"):
        engine.door.open("c", prompt)
    gate.open()
    answers.take(engine.step())
    load = engine.door.open("c", prompt)
    drive(source, ask("y", prompt, 1, domain="c"))
    pages = source.tables.prefix.match(source.tables.keys_of("c", prompt))
    for offset, page in zip(load.offsets, pages, strict=True):
        engine.kv.memory.data[offset : offset + load.page_bytes] = source.kv.bytes_of(page.id)
    sums = [xxhash.xxh3_64_intdigest(source.kv.bytes_of(page.id).tobytes()) for page in pages]
    engine.door.commit(load.id, load.incarnation, sums)
    engine.tables.prefix.purge("a")  # room for b: else what was loaded would go, c having the most
    finish(engine, answers)
    clean = drive(make_tiny(), *pair(), ask("c", prompt, 4, domain="c"))
    assert answers.tokens("b") == clean.tokens("b")
    answers = drive(engine, ask("c", prompt, 4, domain="c"))
    assert answers.cached("c") == 15
    assert answers.tokens("c") == clean.tokens("c")


def test_an_ended_request_is_computed_in_vain_once(make_tiny: EngineFactory) -> None:
    """Its end token came while the next step was on its way already: nothing of that is told."""
    engine = make_tiny(prefix_cache=False)
    answer = drive(engine, ask("x", random_prompt(8, 8), 6)).tokens("x")
    engine.scheduler.eos_token_ids = frozenset([answer[2]])
    steps, written = engine.stats().steps, engine.stats().output_tokens
    again = drive(engine, ask("y", random_prompt(8, 8), 6))
    assert again.tokens("y") == answer[: answer.index(answer[2]) + 1]
    assert engine.stats().output_tokens - written == len(again.tokens("y"))
    assert engine.stats().steps - steps == len(again.tokens("y")) + 1
    check_books(engine.pool, [])


def test_the_next_step_is_laid_out_while_one_runs(make_tiny: EngineFactory) -> None:
    """Two are on their way; without overlap never more than one."""
    engine, gate = held(make_tiny, "checked")
    answers = Answers()
    gate.drive_to(answers)
    assert engine._launch()
    assert len(engine._flights) == 2
    gate.open()
    finish(engine, answers)


def test_a_prompt_whose_chunk_is_stopped_does_not_go_on(make_faulty: EngineFactory) -> None:
    """Its next chunk is on its way already: it would read what was never computed."""
    engine = make_faulty(max_batch_tokens=8, max_running=4)
    engine.add(ask("a", random_prompt(20, 1), 4))
    gate = Gate(engine, "launched", 1)
    assert engine._launch()
    assert engine._launch()
    first, second = engine._flights
    first.batch.expected_tags[0, 0] += 1
    gate.open()
    assert not first.land().batch.chunks
    assert not second.land().batch.chunks
    answers = Answers()
    finish(engine, answers)
    clean = drive(make_faulty(), ask("a", random_prompt(20, 1), 4))
    assert answers.tokens("a") == clean.tokens("a")
