"""What becomes of a row that failed a check: its pages, its one retry, and its engine."""

from __future__ import annotations

import numpy as np
import pytest

from engines.api import EngineRetiring, FinishReason
from engines.embedded.engine import EmbeddedEngine
from engines.embedded.pages import State
from tests.engines.conftest import EngineFactory
from tests.engines.helpers import Answers, ask, drive, random_prompt
from tests.engines.three import assert_aborted, expect_an_older_tag, run, seq_of, use_stale_page

ON_BOTH_BACKENDS = True


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
    assert {engine.pool.domain_of(page) for page in cached} == {"c"}  # of what was computed before
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
