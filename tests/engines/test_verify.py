"""Injected faults: the named check fires, its row is stopped, the others don't notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from engines.api import EngineFailed, EngineRetiring, FinishReason, KvIntegrityAbort, Request
from engines.embedded import batch as batches, engine as engine_module
from engines.embedded.batch import Batch
from engines.embedded.engine import EmbeddedEngine
from engines.embedded.pages import State
from engines.embedded.seq import Chunk, Seq
from tests.engines.books import check_books
from tests.engines.conftest import EngineFactory
from tests.engines.helpers import Answers, ask, drive, random_prompt

FAULT_STEP = 5
Fault = Callable[[EmbeddedEngine], None]


@pytest.fixture
def make_plain(make_tiny: EngineFactory) -> EngineFactory:
    """Steps don't overlap, so that a fault meets exactly the step that it is planted ahead of."""
    return partial(make_tiny, overlap=False)


@pytest.fixture
def make_broken(make_faulty: EngineFactory) -> EngineFactory:
    """The same, for faults that the pool's books don't survive."""
    return partial(make_faulty, overlap=False)


def three_requests() -> list[Request]:
    """Three domains, so that every kind of fault crosses a border."""
    return [ask(f"r{i}", random_prompt(9 + i, i), 12, domain=f"d{i}") for i in range(3)]


def seq_of(engine: EmbeddedEngine, id: str) -> Seq:
    return next(seq for seq in engine.scheduler.running if seq.request.id == id)


def run(engine: EmbeddedEngine, fault: Fault | None = None, step: int = FAULT_STEP) -> Answers:
    """Drive three requests; inject the fault ahead of the given step."""
    answers = Answers()
    for request in three_requests():
        engine.add(request)
    for number in range(100):
        if number == step and fault is not None:
            fault(engine)
        if not engine.has_work():
            return answers
        answers.take(engine.step())
    raise AssertionError("the engine never came to an end")


def assert_aborted(answers: Answers, id: str, num_tokens: int) -> None:
    last = answers.last(id)
    assert last.finish is FinishReason.ERROR
    assert isinstance(last.error, KvIntegrityAbort)
    assert len(answers.tokens(id)) == num_tokens


def assert_neighbours_unharmed(make_plain: EngineFactory, answers: Answers, victim: str) -> None:
    """The others' tokens equal a run in which the victim is aborted at the same step."""
    clean = run(make_plain(), lambda engine: engine.abort(victim))
    for request in three_requests():
        if request.id != victim:
            assert answers.tokens(request.id) == clean.tokens(request.id)
            assert answers.last(request.id).finish is FinishReason.LENGTH


def corrupt_batches(
    monkeypatch: pytest.MonkeyPatch, corrupt: Callable[[Batch], Batch], at: int = FAULT_STEP + 1
) -> None:
    """Let the `at`-th batch that is built, and no other, go wrong on its way to the runner."""
    count = 0

    def build(chunks: list[Chunk], page_size: int) -> Batch:
        nonlocal count
        count += 1
        built = batches.build(chunks, page_size)
        return corrupt(built) if count == at else built

    monkeypatch.setattr(engine_module, "build", build)


def row_of(batch: Batch, id: str) -> int:
    return next(i for i, chunk in enumerate(batch.chunks) if chunk.seq.request.id == id)


def swapped(array: np.ndarray[Any, Any], i: int, j: int) -> np.ndarray[Any, Any]:
    copy = array.copy()
    copy[[i, j]] = copy[[j, i]]
    return copy


def use_stale_page(engine: EmbeddedEngine) -> None:
    """Row r1 names a page of r0's, under the tag it once recorded for its own."""
    seq_of(engine, "r1").block_table[1] = seq_of(engine, "r0").block_table[1]


def free_a_held_page(engine: EmbeddedEngine) -> None:
    """An allocator bug: a page of r1 is freed and given to another domain."""
    page = seq_of(engine, "r1").block_table[0]
    engine.pool.refs[page] = 1
    engine.pool.release(page)
    engine.pool.recycle()
    engine.pool._free.remove(page)
    engine.pool._free.append(page)
    assert engine.pool.allocate("thief", -1).id == page


def expect_an_older_tag(engine: EmbeddedEngine) -> None:
    """Row r1's page has been given up and given to it again, and it didn't notice."""
    seq_of(engine, "r1").tags[1] -= 1


def use_foreign_page(engine: EmbeddedEngine) -> None:
    """Row r1 names a page of r0's together with its right tag: only the domain is wrong."""
    thief, owner = seq_of(engine, "r1"), seq_of(engine, "r0")
    thief.block_table[1], thief.tags[1] = owner.block_table[1], owner.tags[1]


@pytest.mark.parametrize(
    "fault", [use_stale_page, expect_an_older_tag, use_foreign_page, free_a_held_page]
)
def test_a_page_that_is_not_the_recorded_one_stops_its_row(
    make_broken: EngineFactory, fault: Fault
) -> None:
    """Before the forward pass: no token of that step or later, and the others go on."""
    engine = make_broken(prefix_cache=False)
    answers = run(engine, fault)
    assert_aborted(answers, "r1", FAULT_STEP)
    assert_neighbours_unharmed(make_broken, answers, "r1")
    assert engine.stats().integrity_aborts == 1
    assert engine.stats().tag_mismatches == 1


def test_a_page_that_was_not_its_own_is_left_to_its_owner(make_broken: EngineFactory) -> None:
    """The victim's pages are quarantined; the foreign page in its table is not."""
    engine = make_broken()
    seen: list[int] = []

    def fault(engine: EmbeddedEngine) -> None:
        use_stale_page(engine)
        seen.extend(seq_of(engine, "r1").block_table)

    run(engine, fault)
    own, foreign, *more = seen
    assert all(engine.pool.states[page] == State.QUARANTINED for page in (own, *more))
    assert engine.pool.states[foreign] != State.QUARANTINED


@pytest.mark.parametrize("id", ["r0", "r1", "r2"])
def test_a_tag_that_changes_during_the_step_withholds_the_token(
    make_broken: EngineFactory, monkeypatch: pytest.MonkeyPatch, id: str
) -> None:
    """The second check, against the pool's own tags, catches what the first could not see."""
    engine = make_broken(prefix_cache=False)
    forward = engine.runner.run
    step = 0

    def run_with_bump(batch: Batch) -> dict[int, int]:
        nonlocal step
        tokens = forward(batch)
        if step == FAULT_STEP:
            page = seq_of(engine, id).block_table[0]
            engine.pool._retag(page, seq_of(engine, id).domain_slot)
        step += 1
        return tokens

    monkeypatch.setattr(engine.runner, "run", run_with_bump)
    answers = run(engine)
    assert_aborted(answers, id, FAULT_STEP)
    # The pages whose tag is still the row's are out of use; the bumped one isn't its any more.
    assert engine.stats().pages["quarantined"] >= 2
    monkeypatch.undo()
    assert_neighbours_unharmed(make_broken, answers, id)


def test_swapped_block_tables_stop_both_rows(
    make_plain: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rows of a staged table trade places: both are stopped, the third goes on."""
    engine = make_plain()

    def corrupt(batch: Batch) -> Batch:
        i, j = row_of(batch, "r0"), row_of(batch, "r1")
        return replace(batch, block_tables=swapped(batch.block_tables, i, j))

    corrupt_batches(monkeypatch, corrupt)
    answers = run(engine)
    assert_aborted(answers, "r0", FAULT_STEP)
    assert_aborted(answers, "r1", FAULT_STEP)
    assert answers.last("r2").finish is FinishReason.LENGTH
    check_books(engine.pool, [])


def test_tables_swapped_together_with_their_tags_fail_the_domain_check(
    make_plain: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tags then fit the tables; only the rows' domains, which came another way, don't."""
    engine = make_plain()

    def corrupt(batch: Batch) -> Batch:
        i, j = row_of(batch, "r0"), row_of(batch, "r1")
        pages = swapped(batch.block_tables, i, j)
        return replace(
            batch,
            block_tables=pages,
            expected_tags=swapped(batch.expected_tags, i, j),
            slot_mapping=pages[batch.token_rows, batch.positions // 4] * 4 + batch.positions % 4,
            num_pages=swapped(batch.num_pages, i, j),
        )

    corrupt_batches(monkeypatch, corrupt)
    answers = run(engine)
    assert_aborted(answers, "r0", FAULT_STEP)
    assert_aborted(answers, "r1", FAULT_STEP)
    assert answers.last("r2").finish is FinishReason.LENGTH


@pytest.mark.parametrize(
    "slot", [0, 3, -1, -5, 64 * 4 + 4, 10**9], ids=["null", "null end", "-1", "-5", "end", "far"]
)
def test_a_write_outside_the_pool_is_stopped(
    make_plain: EngineFactory, monkeypatch: pytest.MonkeyPatch, slot: int
) -> None:
    """The null page, negative slots and slots past the end are nobody's to write."""
    engine = make_plain(prefix_cache=False)

    def corrupt(batch: Batch) -> Batch:
        slots = batch.slot_mapping.copy()
        slots[row_of(batch, "r1")] = slot
        return replace(batch, slot_mapping=slots)

    corrupt_batches(monkeypatch, corrupt)
    answers = run(engine)
    assert_aborted(answers, "r1", FAULT_STEP)
    monkeypatch.undo()
    assert_neighbours_unharmed(make_plain, answers, "r1")


def test_a_write_into_another_rows_page_is_stopped(
    make_plain: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reads are right, the write is not."""
    engine = make_plain(prefix_cache=False)

    def corrupt(batch: Batch) -> Batch:
        slots = batch.slot_mapping.copy()
        slots[row_of(batch, "r1")] = slots[row_of(batch, "r0")]
        return replace(batch, slot_mapping=slots)

    corrupt_batches(monkeypatch, corrupt)
    answers = run(engine)
    assert_aborted(answers, "r1", FAULT_STEP)
    monkeypatch.undo()
    assert_neighbours_unharmed(make_plain, answers, "r1")


@pytest.mark.parametrize("state", [State.SEALED, State.CACHED, State.FREE, State.QUARANTINED])
def test_only_an_active_page_is_written(make_broken: EngineFactory, state: State) -> None:
    """A page in any other state, its tag intact, rejects the write."""
    engine = make_broken(prefix_cache=False)

    def fault(engine: EmbeddedEngine) -> None:
        engine.pool.states[seq_of(engine, "r1").block_table[-1]] = state

    engine.add(three_requests()[1])
    engine.step()
    fault(engine)
    batch = batches.build([seq_of(engine, "r1").next_chunk(1)], 4)
    (mismatch,) = engine.verifier.before(batch)
    assert (mismatch.row, mismatch.kind, mismatch.state) == (0, "slot", state.name)


def test_a_shared_page_is_not_written(make_broken: EngineFactory) -> None:
    """A second holder makes a page read-only."""
    engine = make_broken(prefix_cache=False)
    engine.add(three_requests()[1])
    engine.step()
    seq = seq_of(engine, "r1")
    engine.pool.refs[seq.block_table[-1]] += 1
    (mismatch,) = engine.verifier.before(batches.build([seq.next_chunk(1)], 4))
    assert (mismatch.row, mismatch.kind, mismatch.refs) == (0, "slot", 2)


def test_a_page_of_another_owner_is_not_written(make_broken: EngineFactory) -> None:
    """Not even by a seq of the same domain."""
    engine = make_broken(prefix_cache=False)
    engine.add(three_requests()[1])
    engine.step()
    seq = seq_of(engine, "r1")
    engine.pool.owners[seq.block_table[-1]] += 1
    (mismatch,) = engine.verifier.before(batches.build([seq.next_chunk(1)], 4))
    assert (mismatch.row, mismatch.kind) == (0, "slot")


def test_a_fault_before_the_first_token_is_retried_once_cold(make_broken: EngineFactory) -> None:
    """Its owner sees nothing but the answer; the pages that it wrote stay out of use."""
    prompt = random_prompt(40, 1)
    clean = drive(make_broken(), ask("clean", prompt))
    engine = make_broken(max_batch_tokens=8, max_running=4)
    engine.add(ask("x", prompt))
    answers = Answers()
    answers.take(engine.step())
    seq_of(engine, "x").tags[0] += 1
    while engine.has_work():
        answers.take(engine.step())
    assert answers.tokens("x") == clean.tokens("clean")
    stats = engine.stats()
    assert (stats.integrity_retries, stats.integrity_aborts, stats.tag_mismatches) == (1, 0, 1)


def test_a_second_fault_before_the_first_token_ends_the_request(make_broken: EngineFactory) -> None:
    """One retry, and then the error alone."""
    engine = make_broken(max_batch_tokens=8, max_running=4, prefix_cache=False)
    engine.add(ask("x", random_prompt(40, 1)))
    answers = Answers()
    for _ in range(2):
        answers.take(engine.step())
        seq_of(engine, "x").tags[0] += 1
        answers.take(engine.step())
    assert_aborted(answers, "x", 0)
    assert not engine.has_work()
    stats = engine.stats()
    assert (stats.integrity_retries, stats.integrity_aborts) == (1, 1)
    assert stats.integrity_aborts_streamed == 0


def test_shared_pages_outlive_a_faulty_reader(make_broken: EngineFactory) -> None:
    """A stopped row's own pages are quarantined; those it shared stay for its neighbours."""
    engine = make_broken()
    prompt = random_prompt(17, 3)
    engine.add(ask("first", prompt, 2))
    while engine.has_work():
        engine.step()
    engine.add(ask("bad", prompt, 12))
    engine.add(ask("good", prompt, 12))
    answers = Answers()
    answers.take(engine.step())
    assert answers.cached("bad") == answers.cached("good") == 16
    seq_of(engine, "bad").tags[4] += 1
    while engine.has_work():
        answers.take(engine.step())
    assert_aborted(answers, "bad", 1)
    assert answers.last("good").finish is FinishReason.LENGTH
    engine.add(ask("later", prompt, 2))
    answers.take(engine.step())
    assert answers.cached("later") == 16


def test_a_key_without_the_domain_is_caught_by_the_domain_check(
    make_broken: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the cache ever hands a page to another domain, its reader is stopped in time.

    Cold, it answers as if nothing had been; the engine forgets both caches and retires.
    """
    prompt = random_prompt(17, 3)
    clean = drive(make_broken(), ask("clean", prompt, 2)).tokens("clean")
    engine = make_broken()
    tables = engine.tables
    scope_of = tables._scope_of
    assert scope_of is not None
    monkeypatch.setattr(tables, "_scope_of", lambda domain: scope_of("everybody"))
    engine.add(ask("first", prompt, 2, domain="a"))
    engine.add(ask("mate", random_prompt(5, 4), 12, domain="c"))
    for _ in range(3):
        engine.step()
    engine.add(ask("thief", prompt, 2, domain="b"))
    answers = Answers()
    while engine.has_work():
        answers.take(engine.step())
    assert answers.cached("thief") == 0
    assert answers.tokens("thief") == clean
    assert answers.last("mate").finish is FinishReason.LENGTH
    assert engine.stats().mismatches == {"before/domain": 4}
    assert "another domain" in engine.retirement
    cached = np.flatnonzero(engine.pool.states == State.CACHED).tolist()
    assert {engine.pool.domain_of(page) for page in cached} == {"b", "c"}  # of what ended later
    with pytest.raises(EngineRetiring, match="another domain"):
        engine.add(ask("late", prompt))


def test_a_quarantined_page_is_never_used_again(make_broken: EngineFactory) -> None:
    """After an abort the rest of the pool serves on."""
    engine = make_broken(num_pages=21, prefix_cache=False)
    run(engine, expect_an_older_tag)
    lost = engine.stats().pages["quarantined"]
    assert lost > 0
    condemned = np.flatnonzero(engine.pool.states == State.QUARANTINED).tolist()
    for i in range(6):
        engine.add(ask(f"x{i}", random_prompt(10, i), 10))
    while engine.has_work():
        engine.step()
        for seq in engine.scheduler.running:
            assert not set(seq.block_table) & set(condemned)
    assert engine.stats().pages["quarantined"] == lost


@pytest.mark.parametrize("mode", ["off", "observe"])
def test_it_is_the_check_that_stops_the_row(make_broken: EngineFactory, mode: str) -> None:
    """Without enforcement the same fault reaches the answer: r1 reads r0's page and goes wrong."""
    clean = run(make_broken(prefix_cache=False))
    engine = make_broken(integrity=mode, prefix_cache=False)
    answers = run(engine, use_stale_page)
    assert answers.last("r1").finish is FinishReason.LENGTH
    assert answers.tokens("r1") != clean.tokens("r1")
    assert engine.stats().integrity_aborts == 0
    assert (engine.stats().tag_mismatches > 0) == (mode == "observe")


def test_a_check_that_checks_too_little_fails_the_engine(
    make_plain: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that hides pages from the check breaks the engine instead of looking fine."""
    engine = make_plain()
    corrupt_batches(monkeypatch, lambda batch: replace(batch, num_pages=batch.num_pages * 0), at=1)
    engine.add(three_requests()[0])
    with pytest.raises(EngineFailed, match="covered 0 pages"):
        engine.step()


def test_every_page_of_every_row_is_checked_twice_a_step(make_plain: EngineFactory) -> None:
    """The counter equals the sum of ceil(context / page) over rows and steps, before and after."""
    engine = make_plain()
    owed = 0
    for request in three_requests():
        engine.add(request)
    while engine.has_work():
        running = {seq: seq.num_computed for seq in engine.scheduler.running}
        before = engine.stats().tag_pages_checked
        engine.step()
        owed = engine.stats().tag_pages_checked - before
        if running and not engine.scheduler.waiting and len(running) == 3:
            assert owed == 2 * sum(-(-(computed + 1) // 4) for computed in running.values())
