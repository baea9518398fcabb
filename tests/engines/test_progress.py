"""Every request comes to its end, and is told once what was cached, whatever room is left."""

from __future__ import annotations

from engines.api import FinishReason, KvIntegrityAbort, Request
from engines.embedded.engine import EmbeddedEngine
from engines.embedded.pages import State
from tests.engines.conftest import EngineFactory
from tests.engines.gate import Gate
from tests.engines.helpers import Answers, ask, drive, random_prompt

STEPS = 300  # far more than any of these needs


def drive_within(engine: EmbeddedEngine, answers: Answers, *requests: Request) -> None:
    for request in requests:
        engine.add(request)
    for _ in range(STEPS):
        if not engine.has_work():
            return
        answers.take(engine.step())
    raise AssertionError("the engine never came to an end")


def test_a_cached_prompt_that_fills_the_pool_is_not_copied(make_tiny: EngineFactory) -> None:
    """There's no room for its last page twice: that one is computed again."""
    engine = make_tiny(num_pages=5)
    answers = Answers()
    prompt = random_prompt(12, 1)
    drive_within(engine, answers, ask("first", prompt, 4))
    drive_within(engine, answers, ask("again", prompt, 4))
    assert answers.tokens("again") == answers.tokens("first")
    assert answers.cached("again") == 8


def test_nobody_waits_for_pages_of_a_transfer_that_may_never_end(make_tiny: EngineFactory) -> None:
    """An abandoned load keeps its pages: of two requests the newest gives way instead."""
    engine = make_tiny(num_pages=9)
    load = engine.door.open("x", random_prompt(8, 9))
    engine.door.abandon(load.id, load.incarnation)
    answers = Answers()
    requests = [ask(id, random_prompt(8, seed), 14) for seed, id in enumerate("ab")]
    drive_within(engine, answers, *requests)
    assert [len(answers.tokens(id)) for id in "ab"] == [14, 14]
    assert engine.stats().preempted > 0


def test_a_pool_full_of_open_loads_is_not_broken(make_tiny: EngineFactory) -> None:
    """A request that finds no room waits until the transfers have ended."""
    engine = make_tiny(num_pages=9)
    load = engine.door.open("x", random_prompt(24, 9))
    answers = Answers()
    engine.add(ask("a", random_prompt(8, 1), 14))
    for _ in range(10):
        answers.take(engine.step())
    assert engine.has_work()
    engine.door.drained(load.id, load.incarnation)
    drive_within(engine, answers)
    assert len(answers.tokens("a")) == 14


def test_what_can_never_run_again_is_given_up(make_faulty: EngineFactory) -> None:
    """Quarantine took the room, and giving up all that is cached wouldn't help: no waiting.

    That request alone ends, and the engine retires; a smaller one is answered.
    """
    engine = make_faulty(num_pages=9)
    drive(engine, ask("a", random_prompt(31, 1), 1))
    cached = [page for page in range(1, 9) if engine.pool.states[page] == State.CACHED]
    for page in cached[:-2]:
        engine.tables.prefix.condemn(page)
    answers = Answers()
    drive_within(engine, answers, ask("b", random_prompt(20, 2), 4), ask("c", [1, 2], 4))
    assert isinstance(answers.last("b").error, KvIntegrityAbort)
    assert answers.last("c").finish is FinishReason.LENGTH
    assert "no room" in engine.retirement


def test_who_is_admitted_before_its_pages_are_there_is_told_and_counted(
    make_tiny: EngineFactory,
) -> None:
    """Its first step comes later than its admission; what was cached is told with that."""
    engine = make_tiny(num_pages=13, prefix_cache=False)
    for seed, id in enumerate("ab"):
        engine.add(ask(id, random_prompt(9, seed), 12, domain=id))
    gate = Gate(engine, "checked", 5)
    answers = Answers()
    gate.drive_to(answers)
    engine.abort("a")
    engine.add(ask("c", random_prompt(24, 7), 8, domain="c"))
    engine._launch()
    gate.open()
    drive_within(engine, answers)
    assert answers.cached("c") == 0
    assert engine.stats().prompt_tokens == 9 + 9 + 24


def test_who_is_preempted_in_its_first_step_is_told_and_counted(make_tiny: EngineFactory) -> None:
    """When it has come back."""
    engine = make_tiny(prefix_cache=False)
    engine.add(ask("a", random_prompt(9, 1), 12))
    gate = Gate(engine, "checked", 1)
    engine._launch()
    engine.scheduler._preempt(engine.scheduler.running[0])
    gate.open()
    answers = Answers()
    answers.take(engine._land(engine._flights.popleft()))
    drive_within(engine, answers)
    assert answers.cached("a") == 0
    assert engine.stats().prompt_tokens == 9


def test_a_retry_is_told_what_was_cached_only_once(make_faulty: EngineFactory) -> None:
    """A long prompt fails in its second step, when what was cached has been told already."""
    engine = make_faulty(max_batch_tokens=8, max_running=4, overlap=False)
    answers = Answers()
    engine.add(ask("a", random_prompt(40, 1), 4))
    answers.take(engine.step())
    engine.scheduler.running[0].tags[0] += 1
    drive_within(engine, answers)
    assert engine.stats().integrity_retries == 1
    assert answers.cached("a") == 0
    assert engine.stats().prompt_tokens == 40


def test_a_copied_page_may_go_out_of_use_under_its_reader(make_faulty: EngineFactory) -> None:
    """Scrubbing finds it corrupt while the copy is under way; `observe` stops nobody for that."""
    engine = make_faulty(integrity="observe")
    prompt = random_prompt(12, 1)
    drive(engine, ask("first", prompt, 1))
    engine.add(ask("again", prompt, 4))
    gate = Gate(engine, "checked", engine._num_launched + 1)
    engine._launch()
    (seq,) = engine.scheduler.running
    assert seq.copied is not None
    engine.tables.prefix.condemn(seq.copied.id)
    gate.open()
    answers = Answers()
    drive_within(engine, answers)
    assert len(answers.tokens("again")) == 4
