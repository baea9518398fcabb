"""Faults and ends at the worst moments, and what the neighbours of a stopped row compute."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import count

import pytest

from engines.api import EngineFailed, FinishReason, KvIntegrityAbort, Request
from engines.embedded import tags
from engines.embedded.engine import EmbeddedEngine
from engines.embedded.faults import plant
from engines.embedded.pages import State
from tests.engines.books import check_books, tables_of
from tests.engines.conftest import EngineFactory
from tests.engines.gate import Gate
from tests.engines.helpers import Answers, ask, drive, random_prompt

ON_BOTH_BACKENDS = True

POINTS = ["launched", "checked", "computed"]
FAULT_STEP = 6
PROMPT = random_prompt(13, 3)  # three whole pages and a token

Computed = dict[str, list[list[bytes]]]  # by request, after each step: all its pages


def finish(engine: EmbeddedEngine, answers: Answers) -> None:
    while engine.has_work():
        answers.take(engine.step())


def run(engine: EmbeddedEngine, before: Callable[[int], None]) -> tuple[Answers, Computed]:
    """Four requests of four domains; what they answer, and every byte of KV on the way there."""
    answers = Answers()
    computed: Computed = defaultdict(list)
    for i in range(4):
        engine.add(ask(f"r{i}", random_prompt(7 + i, i), 16, domain=f"d{i}"))
    for number in range(200):
        before(number)
        if not engine.has_work():
            return answers, computed
        answers.take(engine.step())
        for seq in engine.scheduler.running:
            pages = [engine.kv.bytes_of(page).tobytes() for page in seq.block_table]
            computed[seq.request.id].append(pages)
    raise AssertionError("the engine never came to an end")


@pytest.mark.parametrize(
    ("kind", "ends_at"),
    [
        ("free-held-page", FAULT_STEP),
        ("evict-held-page", FAULT_STEP),
        ("seal-too-soon", FAULT_STEP),
        ("share-active-page", FAULT_STEP),
        ("negative-slot", FAULT_STEP),
        ("stale-staging", FAULT_STEP),
        ("swap-tables", FAULT_STEP),
        ("swap-tables-and-tags", FAULT_STEP),
        ("bump-tag-in-step", FAULT_STEP + 1),  # its row is computed, and stopped then
    ],
)
def test_neighbours_compute_the_very_bytes_of_a_clean_run(
    make_faulty: EngineFactory, kind: str, ends_at: int
) -> None:
    """In which the rows at fault end at the same step: KV of every page, after every step."""
    engine = make_faulty(overlap=False, num_pages=129)

    def at_fault(number: int) -> None:
        if number == FAULT_STEP:
            plant(engine, kind)

    answers, computed = run(engine, at_fault)
    stopped = [id for id in answers.outputs if answers.last(id).finish is FinishReason.ERROR]
    assert stopped
    clean_engine = make_faulty(overlap=False, num_pages=129)

    def aborts(number: int) -> None:
        if number == ends_at:
            for id in stopped:
                clean_engine.abort(id)

    clean_answers, clean = run(clean_engine, aborts)
    for id in set(answers.outputs) - set(stopped):
        assert answers.tokens(id) == clean_answers.tokens(id)
        assert computed[id] == clean[id] != []


@pytest.mark.parametrize("point", POINTS)
def test_an_abort_in_the_middle_of_a_prompt_leaves_what_is_whole(
    make_tiny: EngineFactory, point: str
) -> None:
    """Chunks that had landed can be shared; the one on its way is nobody's."""
    prompt = random_prompt(40, 1)
    clean = drive(make_tiny(), ask("x", prompt)).tokens("x")
    engine = make_tiny(max_batch_tokens=8, max_running=4)
    engine.add(ask("gone", prompt))
    answers = Answers()
    gate = Gate(engine, point, 3)
    gate.drive_to(answers)
    engine.abort("gone")
    gate.open()
    engine.add(ask("again", prompt))
    finish(engine, answers)
    assert answers.cached("again") == 16
    assert answers.tokens("again") == clean
    check_books(engine.pool, tables_of(engine))


@pytest.mark.parametrize("length", range(1, 9))
def test_an_end_at_any_place_of_a_page_caches_only_what_was_told(
    make_tiny: EngineFactory, length: int
) -> None:
    """A step after the end token is computed in vain; a next turn of the chat goes on rightly."""
    engine = make_tiny()
    whole = drive(make_tiny(), ask("x", PROMPT, 12)).tokens("x")
    engine.scheduler.eos_token_ids = frozenset([whole[length - 1]])
    told = drive(engine, ask("first", PROMPT, 12)).tokens("first")
    assert told == whole[: whole.index(whole[length - 1]) + 1]
    engine.scheduler.eos_token_ids = frozenset()
    turn = [*PROMPT, *told, *random_prompt(5, 9)]
    answers = drive(engine, ask("next", turn, 6))
    assert answers.cached("next") == (len(PROMPT) + len(told) - 1) // 4 * 4
    assert answers.tokens("next") == drive(make_tiny(), ask("y", turn, 6)).tokens("y")
    check_books(engine.pool, tables_of(engine))


def test_scrubbing_finds_a_flipped_bit_under_its_readers(make_faulty: EngineFactory) -> None:
    """Those that read the page are stopped, nobody else is, and it is never used again."""
    engine = make_faulty()
    scrubber = engine.tables.scrubber
    assert scrubber is not None
    scrubber._pages_per_s = 0.0
    readers: list[Request] = [ask(id, [*PROMPT, i], 12) for i, id in enumerate(("one", "two"))]
    other = ask("other", random_prompt(9, 5), 12, domain="b")
    clean = drive(make_faulty(), *readers, other)
    drive(engine, ask("warm", PROMPT, 1))
    for request in (*readers, other):
        engine.add(request)
    answers = Answers()
    gate = Gate(engine, "checked", engine._num_launched + 5)
    gate.drive_to(answers)
    (page,) = {seq.block_table[0] for seq in engine.scheduler.running if seq.num_shared_pages}
    assert engine.pool.refs[page] == 2
    engine.kv.bytes_of(page)[7] ^= 4
    scrubber._pages_per_s, scrubber._clock = 1e6, count(scrubber._last_s + 1).__next__
    gate.open()
    finish(engine, answers)
    for request in readers:
        assert isinstance(answers.last(request.id).error, KvIntegrityAbort)
    assert answers.tokens("other") == clean.tokens("other")
    assert scrubber.counted.mismatches == 1
    assert engine.pool.states[page] == State.QUARANTINED
    again = drive(engine, ask("again", [*PROMPT, 0], 12))
    assert again.tokens("again") == clean.tokens("one")


def test_the_last_generation_is_never_passed(make_faulty: EngineFactory) -> None:
    """Whoever goes on past all warnings is stopped: no tag ever comes twice."""
    engine = make_faulty()
    engine.add(ask("a", random_prompt(9, 1), 12))
    engine.step()
    engine.pool._generation = (1 << tags.GENERATION_BITS) - 2
    with pytest.raises(EngineFailed, match="generations"):
        finish(engine, Answers())
    assert len(set(engine.pool.tags.tolist())) == engine.pool.num_pages
    with pytest.raises(EngineFailed, match="generations"):
        engine.step()
