"""Moving pages between seqs, pool and cache: promises, sharing, and what a faulty seq leaves."""

from __future__ import annotations

import pytest

from engines.api import Request, Sampling
from engines.embedded.pages import PagePool, State
from engines.embedded.prefix import KeyScope
from engines.embedded.seq import Seq
from engines.embedded.tables import Tables

PAGE_SIZE = 4


def scope_of(domain: str) -> KeyScope:
    return KeyScope(domain, "rev", "", "bfloat16", "", "layout", PAGE_SIZE)


def make_seq(prompt_len: int, max_tokens: int, domain: str = "a") -> Seq:
    return Seq.of(Request("r", domain, tuple(range(prompt_len)), Sampling(max_tokens)))


def compute(tables: Tables, seq: Seq) -> None:
    """Fill the pages of the whole prompt."""
    tables.grow(seq, seq.prompt_len)
    seq.num_computed = seq.prompt_len
    tables.seal(seq)


@pytest.fixture
def tables() -> Tables:
    return Tables(PagePool(6), PAGE_SIZE, scope_of)


def leave_cached(tables: Tables, prompt_len: int) -> None:
    seq = make_seq(prompt_len, 1)
    assert tables.admit(seq)
    compute(tables, seq)
    tables.release(seq)


def test_cached_pages_are_not_promised_twice(tables: Tables) -> None:
    """A seq that takes cached pages can't count on evicting the same ones."""
    leave_cached(tables, 9)
    other = make_seq(4, 4, domain="b")
    assert tables.admit(other)
    # Of 5 pages 2 are cached and 2 are promised: one is left, and this seq needs 2 beside the 2.
    assert not tables.admit(make_seq(9, 7))
    assert tables.admit(make_seq(9, 3))


def test_a_promise_outlives_eviction(tables: Tables) -> None:
    """A running seq that needs its last page gets it from the cache."""
    leave_cached(tables, 9)
    seq = make_seq(4, 16, domain="b")
    assert tables.admit(seq)
    tables.grow(seq, 20)
    assert len(seq.block_table) == 5
    assert tables.pool.count()["cached"] == 0


def test_a_faulty_reader_returns_what_it_shared(tables: Tables) -> None:
    """Pages taken from the cache go back to it, even if the faulty seq was their only holder."""
    leave_cached(tables, 9)
    seq = make_seq(9, 3)
    assert tables.admit(seq)
    compute(tables, seq)
    *shared, own = seq.block_table
    tables.quarantine(seq)
    assert [tables.pool.states[page] for page in shared] == [State.CACHED] * 2
    assert tables.pool.states[own] == State.QUARANTINED
    tables.pool.check_invariants([])


def test_what_a_faulty_writer_sealed_is_not_found_again(tables: Tables) -> None:
    """Its own pages leave the index with it."""
    seq = make_seq(9, 3)
    assert tables.admit(seq)
    compute(tables, seq)
    tables.quarantine(seq)
    again = make_seq(6, 2)
    assert tables.admit(again)
    assert again.num_cached == 0


def test_a_page_of_another_domain_is_not_condemned(tables: Tables) -> None:
    """Even if a faulty seq names it together with its present tag."""
    owner, faulty = make_seq(4, 4, "a"), make_seq(4, 4, "b")
    for seq in (owner, faulty):
        assert tables.admit(seq)
        compute(tables, seq)
    faulty.block_table[0], faulty.tags[0] = owner.block_table[0], owner.tags[0]
    tables.quarantine(faulty)
    (page,) = owner.pages()
    assert tables.pool.holds(page)
    tables.release(owner)


def test_an_aborted_seq_keeps_no_promise(tables: Tables) -> None:
    """After any end the whole pool is available again."""
    for end in (tables.release, tables.quarantine):
        seq = make_seq(3, 10)
        assert tables.admit(seq)
        end(seq)
        full = make_seq(4, 16)
        assert tables.admit(full)
        tables.release(full)


def test_the_last_pages_of_a_prefix_are_evicted_first(tables: Tables) -> None:
    """A prefix shrinks from its end: what is left stays reachable."""
    leave_cached(tables, 17)
    assert tables.prefix.num_evictable == 4
    tables.prefix.evict_oldest()
    seq = make_seq(17, 1)
    assert tables.admit(seq)
    assert seq.num_cached == 12
