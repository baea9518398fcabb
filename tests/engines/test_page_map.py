"""The picture of the pool: right counts, owners and ages, whatever state pages are in."""

from __future__ import annotations

import numpy as np
import pytest

from engines.embedded.page_map import page_map
from engines.embedded.pages import PagePool, State
from tests.engines.conftest import EngineFactory
from tests.engines.helpers import ask, drive, random_prompt

A, B = "aaaaaaaabbbbbbbb", "ccccccccdddddddd"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pool(clock: Clock) -> PagePool:
    return PagePool(9, clock=clock)


def test_states_owners_and_ages(pool: PagePool, clock: Clock) -> None:
    pages = [pool.allocate(domain, 1).id for domain in (A, A, A, B, B)]
    clock.now += 10
    pool.seal(pages[1])
    pool.seal(pages[2])
    pool.release(pages[2], keep=True)
    clock.now += 5
    pool.launch(1, np.array([pages[4]]))
    pool.release(pages[4])
    pool.pin(pages[3])
    clock.now += 2
    pool.recycle()
    told = page_map(pool, 16)
    assert told.states == "ascarfff"
    assert told.owners == [0, 0, 0, 1, 1, -1, -1, -1]
    assert told.pages == pool.count()
    a, b = told.domains
    assert (a.domain, a.pages) == ("aaaaaaaa", {"active": 1, "sealed": 1, "cached": 1})
    assert (a.youngest_s, a.oldest_s) == (7, 17)
    assert (b.domain, b.pages) == ("cccccccc", {"active": 1, "retiring": 1})
    assert (b.youngest_s, b.oldest_s) == (2, 17)
    assert (told.pinned, told.limbo_age_s) == (1, 2)
    assert (told.launched_step, told.completed_step) == (1, 0)
    assert told.generation == pool.generation


def test_freed_and_quarantined_pages_are_nobody_s(pool: PagePool) -> None:
    """And a domain that has no page any more isn't told of."""
    first, second = pool.allocate(A, 1).id, pool.allocate(B, 1).id
    pool.quarantine(first)
    pool.release(second)
    pool.recycle()
    told = page_map(pool, 16)
    assert told.states == "qfffffff"
    assert set(told.owners) == {-1}
    assert told.domains == []
    assert told.limbo_age_s == 0


def test_no_letter_stands_for_two_states() -> None:
    assert len({state.name[0] for state in State}) == len(State)


def test_many_domains_in_a_large_pool() -> None:
    pool = PagePool(100_001)
    for page in range(2000):
        pool.seal(pool.allocate(f"{page % 500:016}", 1).id)
    told = page_map(pool, 16)
    assert len(told.domains) == 500
    assert sum(domain.pages["sealed"] for domain in told.domains) == 2000


def test_an_engine_tells_of_its_pages_and_their_domain(make_tiny: EngineFactory) -> None:
    engine = make_tiny()
    drive(engine, ask("x", random_prompt(40, 3), 2, domain=A))
    told = engine.pages()
    assert len(told.states) == engine.pool.num_pages - 1
    (domain,) = told.domains
    assert (domain.domain, domain.pages["cached"]) == (A[:8], told.pages["cached"])
    assert engine.stats().limbo_age_s == told.limbo_age_s == 0
