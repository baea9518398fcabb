"""Three requests of three domains, and faults planted in their tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engines.api import FinishReason, KvIntegrityAbort, Request
from engines.embedded import batch as batches, engine as engine_module
from engines.embedded.batch import Batch
from engines.embedded.engine import EmbeddedEngine
from engines.embedded.seq import Chunk, Seq
from tests.engines.conftest import EngineFactory
from tests.engines.helpers import Answers, ask, random_prompt

FAULT_STEP = 5
Fault = Callable[[EmbeddedEngine], None]


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
