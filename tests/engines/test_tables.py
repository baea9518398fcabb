"""Moving pages between seqs, pool and cache: room, sharing, and what a faulty seq leaves."""

from __future__ import annotations

import numpy as np
import pytest

from engines.api import Request, Sampling
from engines.embedded.pages import PagePool, State
from engines.embedded.prefix import KeyScope
from engines.embedded.seq import Phase, Seq
from engines.embedded.tables import Tables
from tests.engines.books import check_books

PAGE_SIZE = 4


def scope_of(domain: str) -> KeyScope:
    return KeyScope(domain, "rev", "", "bfloat16", "bfloat16", "unit", "layout", PAGE_SIZE)


def make_seq(prompt_len: int, max_tokens: int, domain: str = "a") -> Seq:
    return Seq.of(Request("r", domain, tuple(range(prompt_len)), Sampling(max_tokens)))


def compute(tables: Tables, seq: Seq) -> None:
    """Fill the pages of the whole prompt."""
    assert tables.grow(seq, seq.prompt_len)
    tables.computed(seq.next_chunk(seq.prompt_len - seq.num_scheduled), seq.prompt_len)


@pytest.fixture
def tables() -> Tables:
    return Tables(PagePool(6), PAGE_SIZE, scope_of)


def leave_cached(tables: Tables, prompt_len: int) -> None:
    seq = make_seq(prompt_len, 1)
    assert tables.admit(seq)
    compute(tables, seq)
    tables.release(seq, Phase.ENDED)
    tables.pool.recycle()


def test_cached_pages_are_not_counted_twice(tables: Tables) -> None:
    """A seq that takes cached pages can't count on evicting the same ones."""
    leave_cached(tables, 9)
    # Of 5 pages 2 are cached: beside them, 3 are left.
    assert not tables.admit(make_seq(20, 1))
    assert tables.admit(make_seq(19, 1))


def test_each_running_seq_is_left_room_for_a_page(tables: Tables) -> None:
    """Else a new one would take what the others need next, and be preempted at once."""
    first = make_seq(6, 10)
    assert tables.admit(first)
    compute(tables, first)
    assert not tables.admit(make_seq(8, 1, "b"))  # 2 of 5 are taken, this needs 3
    assert tables.admit(make_seq(7, 1, "b"))


def test_a_seq_grows_into_what_was_cached(tables: Tables) -> None:
    """Until nothing is left to evict; then it must wait."""
    leave_cached(tables, 9)
    seq = make_seq(4, 16, domain="b")
    assert tables.admit(seq)
    assert tables.grow(seq, 20)
    assert len(seq.block_table) == 5
    assert tables.pool.count()["cached"] == 0
    assert not tables.grow(seq, 21)


def test_a_cached_page_that_a_step_may_read_is_not_taken_yet(tables: Tables) -> None:
    """The fence holds for eviction as for every end."""
    seq = make_seq(9, 1)
    assert tables.admit(seq)
    compute(tables, seq)
    tables.pool.launch(1, np.array(seq.block_table))
    tables.release(seq, Phase.ENDED)
    other = make_seq(4, 16, domain="b")
    assert tables.admit(other)
    assert not tables.grow(other, 12)
    assert len(other.block_table) == 2
    tables.pool.complete(1)
    assert tables.grow(other, 20)


def test_a_prompt_that_is_cached_whole_is_copied_on_write(tables: Tables) -> None:
    """Its newest token is computed anew, in a page of its own; the shared one stays as it is."""
    leave_cached(tables, 8)
    seq = make_seq(8, 2)
    assert tables.admit(seq)
    assert seq.num_cached == 7
    (shared,) = seq.block_table
    source = seq.copied
    assert source is not None
    assert tables.pool.states[source.id] == State.SEALED
    compute(tables, seq)
    assert seq.copied is None
    assert tables.pool.states[source.id] == State.CACHED
    assert shared not in (source.id, seq.block_table[1])


@pytest.mark.parametrize("end", ["release", "quarantine"])
def test_a_seq_that_ends_before_its_copy_lets_go_of_it(tables: Tables, end: str) -> None:
    """Whatever its end."""
    leave_cached(tables, 8)
    seq = make_seq(8, 2)
    assert tables.admit(seq)
    tables.grow(seq, 8)
    getattr(tables, end)(seq, Phase.ENDED)
    check_books(tables.pool, [])
    assert tables.pool.count()["cached"] == 2


def test_a_retry_starts_cold(tables: Tables) -> None:
    """What failed the first time may have come from the cache."""
    leave_cached(tables, 9)
    seq = make_seq(9, 1)
    seq.is_retry = True
    assert tables.admit(seq)
    assert seq.num_cached == 0


def test_a_faulty_reader_returns_what_it_shared(tables: Tables) -> None:
    """Pages taken from the cache go back to it, even if the faulty seq was their only holder."""
    leave_cached(tables, 9)
    seq = make_seq(9, 3)
    assert tables.admit(seq)
    compute(tables, seq)
    *shared, own = seq.block_table
    tables.quarantine(seq, Phase.ENDED)
    assert [tables.pool.states[page] for page in shared] == [State.CACHED] * 2
    assert tables.pool.states[own] == State.QUARANTINED
    check_books(tables.pool, [])


def test_what_a_faulty_writer_sealed_is_not_found_again(tables: Tables) -> None:
    """Its own pages leave the index with it."""
    seq = make_seq(9, 3)
    assert tables.admit(seq)
    compute(tables, seq)
    tables.quarantine(seq, Phase.ENDED)
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
    tables.quarantine(faulty, Phase.ENDED)
    (page,) = owner.pages()
    assert tables.pool.holds(page)
    tables.release(owner, Phase.ENDED)


def test_an_ended_seq_holds_nothing(tables: Tables) -> None:
    """After any end the whole pool is available again."""
    for end in (tables.release, tables.quarantine):
        seq = make_seq(3, 10)
        assert tables.admit(seq)
        end(seq, Phase.ENDED)
        full = make_seq(19, 1)
        assert tables.admit(full)
        tables.release(full, Phase.ENDED)


def test_the_last_pages_of_a_prefix_are_evicted_first(tables: Tables) -> None:
    """A prefix shrinks from its end: what is left stays reachable."""
    leave_cached(tables, 17)
    assert tables.prefix.num_evictable == 4
    tables.prefix.evict_one()
    seq = make_seq(17, 1)
    assert tables.admit(seq)
    assert seq.num_cached == 12
