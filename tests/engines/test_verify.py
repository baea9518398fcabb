"""Injected faults: the named check fires, its row is stopped, the others don't notice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.api import EngineFailed, FinishReason
from engines.embedded import batch as batches
from engines.embedded.batch import Batch
from engines.embedded.engine import EmbeddedEngine
from engines.embedded.pages import State
from engines.kernels import native
from tests.engines.books import check_books
from tests.engines.conftest import EngineFactory
from tests.engines.three import (
    FAULT_STEP,
    Fault,
    assert_aborted,
    assert_neighbours_unharmed,
    corrupt_batches,
    expect_an_older_tag,
    free_a_held_page,
    row_of,
    run,
    seq_of,
    swapped,
    three_requests,
    use_foreign_page,
    use_stale_page,
)


@pytest.fixture(params=["native", "numpy"], autouse=True)
def look(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks, the same is found."""
    if request.param == "numpy":
        monkeypatch.setattr(native, "IS_BUILT", False)
    elif not native.IS_BUILT:
        pytest.skip("the native module isn't built")


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


@pytest.mark.parametrize("id", ["r0", "r1", "r2"])
def test_a_tag_that_changes_during_the_step_withholds_the_token(
    make_broken: EngineFactory, monkeypatch: pytest.MonkeyPatch, id: str
) -> None:
    """The second check, against the pool's own tags, catches what the first could not see."""
    engine = make_broken(prefix_cache=False)
    forward = engine.runner.run
    step = 0

    def run_with_bump(batch: Batch) -> dict[int, tuple[int, ...]]:
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
