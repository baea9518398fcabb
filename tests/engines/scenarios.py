"""Orders of events on the real engine, each held at named points of a step: nothing is luck.

A scenario raises Wrong if an answer isn't the one it must be, or the wrong request was stopped.
Those that plant a fault say what it is: a sound engine must stop it, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import numpy as np
import xxhash

from engines.api import Request
from engines.embedded.batch import Batch
from engines.embedded.door import Load, LoadRefused
from engines.embedded.engine import EmbeddedEngine
from engines.embedded.faults import plant
from engines.embedded.pages import State
from engines.embedded.seq import Seq
from tests.engines.books import check_books
from tests.engines.gate import Gate
from tests.engines.helpers import Answers, ask, random_prompt

STEP = 5  # the one that is held: all are answering
CACHED = random_prompt(12, 3)  # three whole pages
LOADED = random_prompt(16, 4)  # four
A, B, C, D = (ask(id, random_prompt(9, seed), 12, domain=id) for seed, id in enumerate("abcd"))

GARBAGE = 0x42  # in every byte: finite numbers, and no model's


class Source(Protocol):
    """What a sound engine answers, and what it computes."""

    def answer(self, request: Request) -> list[int]: ...

    def pages(self, domain: str, prompt: list[int]) -> list[bytes]: ...


Scenario = Callable[[EmbeddedEngine, Source], None]


class Wrong(AssertionError):
    """Something left the engine that must not have left it."""


def two_answer(engine: EmbeddedEngine, source: Source) -> None:
    """Two requests of two domains, and nothing happens."""
    answers = Answers()
    finish(engine, answers, A, B)
    compare(answers, source, A, B)


def one_leaves_in_mid_step(engine: EmbeddedEngine, source: Source) -> None:
    """An abort past the first check; another process fills pages as soon as it is given some."""
    answers = Answers()
    load = None
    with _held(engine, answers, "checked", A, B):
        engine.abort("a")
        with suppress(LoadRefused):
            load = _loaded(engine, source)
    engine.tables.prefix.purge("a")  # room for b: else what was loaded would go, c having the most
    finish(engine, answers)
    if load is None:
        _loaded(engine, source)
    reader = ask("reader", LOADED, 6, domain="c")
    finish(engine, answers, reader)
    compare(answers, source, B, reader)


def one_gives_way_in_mid_step(engine: EmbeddedEngine, source: Source) -> None:
    """A preemption while the request's next token is being chosen."""
    answers = Answers()
    with _held(engine, answers, "checked", A, B):
        engine.scheduler._preempt(_seq(engine, "a"))
    finish(engine, answers)
    compare(answers, source, A, B)


def a_writer_is_late(engine: EmbeddedEngine, source: Source) -> None:
    """A load is given up; its writer goes on writing while others use whatever pages they get."""
    load = engine.door.open("x", LOADED)
    engine.door.abandon(load.id, load.incarnation)
    engine.tend()
    answers = Answers()
    with _held(engine, answers, "launched", A, B):
        for page in load.pages:
            engine.kv.bytes_of(page.id)[:] = GARBAGE
    finish(engine, answers)
    compare(answers, source, A, B)
    engine.door.drained(load.id, load.incarnation)


def shared_pages_and_a_full_pool(engine: EmbeddedEngine, source: Source) -> None:
    """Of two who share a prompt one leaves; others need every page that is to be had."""
    first, second = ask("first", [*CACHED, 1], 2), ask("second", [*CACHED, 2], 16)
    crowd = [ask(f"d{seed}", random_prompt(20, 50 + seed), 8, domain="d") for seed in range(3)]
    answers = Answers()
    finish(engine, answers, ask("warm", [*CACHED, 3], 1))
    finish(engine, answers, first, second, *crowd)
    again = ask("again", [*CACHED, 4], 4)
    finish(engine, answers, again)
    compare(answers, source, first, second, again, *crowd)


def a_page_comes_back_to_the_cache(engine: EmbeddedEngine, source: Source) -> None:
    """A cached page is evicted and belongs to another domain when its prompt comes again."""
    answers = Answers()
    finish(engine, answers, ask("warm", CACHED, 1))
    engine.add(D)
    answers.take(engine.step())
    while engine.tables.prefix.evict_one():
        engine.pool.recycle()
    again = ask("again", [*CACHED, 4], 4)
    finish(engine, answers, again)
    compare(answers, source, D, again)


def a_whole_prompt_is_cached(engine: EmbeddedEngine, source: Source) -> None:
    """Of its last page, which is shared, the last token is computed again."""
    answers = Answers()
    for id in ("warm", "again", "more"):
        request = ask(id, CACHED, 4)
        finish(engine, answers, request)
        compare(answers, source, request)


def two_domains_have_one_prompt(engine: EmbeddedEngine, source: Source) -> None:
    """The second mustn't be told that any of it was cached."""
    answers = Answers()
    first, second = ask("first", [*CACHED, 1], 4), ask("second", [*CACHED, 1], 4, domain="b")
    finish(engine, answers, first)
    finish(engine, answers, second)
    compare(answers, source, first, second)
    if answers.cached("second"):
        raise Wrong("it was given another domain's pages")


def a_shared_page_is_evicted(engine: EmbeddedEngine, source: Source) -> None:
    """Planted: a page that came from the cache, and that a request reads, goes to another."""
    answers = Answers()
    finish(engine, answers, ask("warm", [*CACHED, 3], 1))
    victim = ask("victim", [*CACHED, 1], 12)
    with _held(engine, answers, "launched", victim):
        page = _seq(engine, "victim").block_table[2]
        engine.tables.prefix.forget(page)
        engine.pool.refs[page], engine.pool.states[page] = 0, State.CACHED
        engine.pool.evict(page)
        engine.kv.bytes_of(page)[:] = GARBAGE
    finish(engine, answers)
    _expect_stopped(answers, source, victim)


def a_page_changes_hands_in_mid_step(engine: EmbeddedEngine, source: Source) -> None:
    """Planted: past the fences, past the first check, a page is freed and filled by another."""
    answers = Answers()
    with _held(engine, answers, "checked", A, B):
        page = _seq(engine, "a").block_table[0]
        engine.tables.prefix.forget(page)
        engine.pool.refs[page] = 1
        engine.pool.release(page)
        engine.pool.last_steps[page] = 0
        engine.pool.recycle()
        assert engine.pool.allocate("thief", -1, State.LOADING).id == page
        engine.kv.bytes_of(page)[:] = GARBAGE
    finish(engine, answers)
    engine.pool.release(page)
    engine.pool.recycle()
    _expect_stopped(answers, source, A, beside=B)


def a_row_names_a_foreign_page(engine: EmbeddedEngine, source: Source) -> None:
    """Planted: a table names a page of another request, under the tag of its own."""

    def misplace(batch: Batch) -> None:
        batch.block_tables[_row(batch, "a"), 0] = batch.block_tables[_row(batch, "b"), 0]

    _with_fault(engine, source, misplace)


def a_row_has_a_foreign_table(engine: EmbeddedEngine, source: Source) -> None:
    """Planted: the same, tag and all."""

    def misplace(batch: Batch) -> None:
        for array in (batch.block_tables, batch.expected_tags):
            array[_row(batch, "a"), 0] = array[_row(batch, "b"), 0]

    _with_fault(engine, source, misplace)


def a_row_writes_to_a_foreign_page(engine: EmbeddedEngine, source: Source) -> None:
    """Planted: it reads what it must, and writes to a sealed page of another request."""

    def misplace(batch: Batch) -> None:
        at = batch.token_rows == _row(batch, "a")
        batch.slot_mapping[at] = batch.block_tables[_row(batch, "b"), 0] * 4

    _with_fault(engine, source, misplace)


def a_held_page_is_freed(engine: EmbeddedEngine, source: Source) -> None:
    """Planted: the allocator gives up a page that a running request still reads."""
    answers = Answers()
    with _held(engine, answers, "launched", B, A):
        plant(engine, "free-held-page")
    finish(engine, answers)
    _expect_stopped(answers, source, A, beside=B)


def _with_fault(engine: EmbeddedEngine, source: Source, misplace: Callable[[Batch], None]) -> None:
    """Two requests; a step that was laid out right goes wrong before it starts to run."""
    answers = Answers()
    _start(engine, answers, A, B)

    def at(point: str, batch: Batch) -> None:
        if point == "launched":
            engine.runway.at = lambda point, batch: None
            misplace(batch)

    engine.runway.at = at
    finish(engine, answers)
    _expect_stopped(answers, source, A, beside=B)


@contextmanager
def _held(
    engine: EmbeddedEngine, answers: Answers, point: str, *requests: Request
) -> Iterator[None]:
    """The requests answer, and their fifth step stands at the point until the block ends."""
    for request in requests:
        engine.add(request)
    gate = Gate(engine, point, engine._num_launched + STEP)
    gate.drive_to(answers)
    try:
        yield
    finally:
        gate.open()


def _start(engine: EmbeddedEngine, answers: Answers, *requests: Request) -> None:
    for request in requests:
        engine.add(request)
    for _ in range(STEP):
        answers.take(engine.step())


def finish(engine: EmbeddedEngine, answers: Answers, *requests: Request) -> None:
    """Begin the requests, and bring all there are to their end."""
    for request in requests:
        engine.add(request)
    while engine.has_work():
        answers.take(engine.step())
        check_books(engine.pool)
    engine.tend()


def _loaded(engine: EmbeddedEngine, source: Source) -> Load:
    """Open a load, fill it and commit it, as a process would that is faster than any step."""
    load = engine.door.open("c", LOADED)
    pages = source.pages("c", LOADED)[load.first_page :]
    for page, content in zip(load.pages, pages, strict=True):
        engine.kv.bytes_of(page.id)[:] = np.frombuffer(content, np.uint8)
    sums = [xxhash.xxh3_64_intdigest(content) for content in pages]
    engine.door.commit(load.id, load.incarnation, sums)
    return load


def _seq(engine: EmbeddedEngine, id: str) -> Seq:
    return next(seq for seq in engine.scheduler.running if seq.request.id == id)


def _row(batch: Batch, id: str) -> int:
    return next(row for row, chunk in enumerate(batch.chunks) if chunk.seq.request.id == id)


def compare(answers: Answers, source: Source, *requests: Request) -> None:
    """Raise Wrong unless each was answered as a sound engine answers it."""
    for request in requests:
        if answers.tokens(request.id) != source.answer(request):
            raise Wrong(f"{request.id} was answered wrongly")


def _expect_stopped(
    answers: Answers, source: Source, victim: Request, beside: Request | None = None
) -> None:
    """Whatever the victim was told is right, it was told no more, and the other was told all."""
    told = answers.tokens(victim.id)
    if told != source.answer(victim)[: len(told)]:
        raise Wrong(f"{victim.id} was answered with what isn't its own")
    if answers.last(victim.id).error is None:
        raise Wrong(f"{victim.id} was not stopped")
    if beside is not None:
        compare(answers, source, beside)
