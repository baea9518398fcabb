"""The page pool: states, references, tags and domain slots."""

from __future__ import annotations

import numpy as np
import pytest

from engines.api import EngineFailed
from engines.embedded import tags
from engines.embedded.pages import MOVES, NOBODY, NULL_PAGE, PagePool, State
from engines.embedded.seq import Page
from tests.engines.books import check_books


@pytest.fixture
def pool() -> PagePool:
    return PagePool(4)


def test_the_null_page_is_never_allocated(pool: PagePool) -> None:
    """A pool of four pages gives out three, and none of them is page 0."""
    pages = [pool.allocate("a", 1).id for _ in range(3)]
    assert sorted(pages) == [1, 2, 3]
    assert pool.num_free == 0
    assert pool.tags[NULL_PAGE] == tags.NULL_TAG


def test_the_tag_changes_on_allocation_and_on_free(pool: PagePool) -> None:
    """A page's tag before, during and after an allocation are three different ones."""
    before = pool.tags.copy()
    page = pool.allocate("a", 1)
    assert page.tag not in before.tolist()
    pool.release(page.id)
    assert int(pool.tags[page.id]) not in [page.tag, *before.tolist()]
    assert not pool.holds(page)


def test_a_free_page_belongs_to_no_domain(pool: PagePool) -> None:
    """The tag of a freed page carries the system's slot."""
    page = pool.allocate("a", 1)
    assert tags.domain_slot(page.tag) != tags.SYSTEM_SLOT
    pool.release(page.id)
    assert tags.domain_slot(int(pool.tags[page.id])) == tags.SYSTEM_SLOT


def test_sealing_and_sharing_leave_the_tag(pool: PagePool) -> None:
    """A tag recorded at allocation still holds while the page is sealed, shared and cached."""
    page = pool.allocate("a", 1)
    pool.seal(page.id)
    pool.share(page.id)
    pool.release(page.id, keep=True)
    pool.release(page.id, keep=True)
    assert pool.states[page.id] == State.CACHED
    assert pool.holds(page)


def test_a_double_release_is_caught(pool: PagePool) -> None:
    """The second release of a page that nobody holds fails at once."""
    page = pool.allocate("a", 1)
    pool.release(page.id)
    with pytest.raises(AssertionError, match="more often than held"):
        pool.release(page.id)


def test_an_active_page_cannot_be_shared(pool: PagePool) -> None:
    """Only sealed pages get a second holder."""
    with pytest.raises(AssertionError, match="sealed"):
        pool.share(pool.allocate("a", 1).id)


def test_a_held_page_cannot_be_evicted(pool: PagePool) -> None:
    """Eviction is for cached pages."""
    page = pool.allocate("a", 1)
    pool.seal(page.id)
    with pytest.raises(AssertionError, match="unheld"):
        pool.evict(page.id)


def test_a_quarantined_page_never_comes_back(pool: PagePool) -> None:
    """Its tag names the quarantine and the pool is one page smaller."""
    page = pool.allocate("a", 1)
    pool.quarantine(page.id)
    assert tags.domain_slot(int(pool.tags[page.id])) == tags.QUARANTINE_SLOT
    assert pool.num_free == 2
    assert pool.count()["quarantined"] == 1
    check_books(pool, [])


def test_quarantine_takes_a_page_from_all_its_holders(pool: PagePool) -> None:
    """What they recorded fits it no longer."""
    page = pool.allocate("a", 1)
    pool.seal(page.id)
    pool.share(page.id)
    pool.quarantine(page.id)
    assert not pool.holds(page)
    check_books(pool, [])


def test_a_domain_slot_is_reused_only_after_its_last_page(pool: PagePool) -> None:
    """While a page still has bytes of a domain, no other domain gets its slot."""
    pool.domains._free_slots.clear()
    pool.domains._free_slots.append(7)
    page = pool.allocate("a", 1)
    pool.seal(page.id)
    pool.release(page.id, keep=True)
    assert not pool.domains.can_open("b")
    pool.evict(page.id)
    assert not pool.domains.can_open("b")
    pool.recycle()
    assert pool.domains.open("b") == 7


def test_generations_never_wrap(pool: PagePool) -> None:
    """Long before their end the pool is spent; at the end it fails for good."""
    pool._generation = tags.GENERATION_LIMIT
    assert pool.is_spent
    pool.release(pool.allocate("a", 1).id)  # what runs may go on
    pool._generation = (1 << tags.GENERATION_BITS) - 1
    with pytest.raises(EngineFailed, match="generations"):
        pool.allocate("a", 1)


def test_a_page_out_of_range_is_not_held(pool: PagePool) -> None:
    """Neither the null page nor numbers outside the pool count as held."""
    assert not pool.holds(Page(NULL_PAGE, tags.NULL_TAG))
    assert not pool.holds(Page(4, 1))
    assert not pool.holds(Page(-1, int(pool.tags[-1])))


def test_check_invariants_notices_a_table_that_names_too_much(pool: PagePool) -> None:
    """References must equal the tables that name a page."""
    page = pool.allocate("a", 1)
    check_books(pool, [[page.id]])
    with pytest.raises(AssertionError):
        check_books(pool, [[page.id], [page.id]])


def test_a_page_is_wiped_before_it_is_free() -> None:
    """Until then nobody can get it, and its domain keeps its slot."""
    wiped: list[list[int]] = []
    pool = PagePool(4, wiped.append)
    page = pool.allocate("a", 1).id
    pool.release(page)
    assert (pool.states[page], pool.num_free, wiped) == (State.RETIRING, 2, [])
    pool.recycle()
    assert (pool.states[page], pool.num_free, wiped) == (State.FREE, 3, [[page]])
    check_books(pool, [])


def test_a_page_waits_for_the_last_step_that_may_touch_it(pool: PagePool) -> None:
    """The fence by step: steps launched later don't hold it up."""
    page = pool.allocate("a", 1).id
    pool.launch(1, np.array([page]))
    pool.launch(2, np.array([], np.int64))
    pool.release(page)
    pool.recycle()
    assert pool.states[page] == State.RETIRING
    pool.complete(1)
    pool.recycle()
    assert pool.states[page] == State.FREE


def test_a_page_waits_for_the_last_transfer_that_may_touch_it(pool: PagePool) -> None:
    """The fence by transfer: each of them must end."""
    page = pool.allocate("a", 1, State.LOADING).id
    pool.pin(page)
    pool.pin(page)
    pool.release(page)
    for _ in range(2):
        pool.recycle()
        assert pool.states[page] == State.RETIRING
        pool.unpin(page)
    pool.recycle()
    assert pool.states[page] == State.FREE
    with pytest.raises(AssertionError, match="more often than pinned"):
        pool.unpin(page)


@pytest.mark.parametrize("before", list(State))
@pytest.mark.parametrize("after", list(State))
def test_a_page_moves_along_its_life_only(pool: PagePool, before: State, after: State) -> None:
    """Every move that the table doesn't name is an error at once."""
    pool.states[1] = before
    if after in MOVES[before]:
        pool._move(1, after)
        assert pool.states[1] == after
    else:
        with pytest.raises(AssertionError, match=f"from {before.name} to {after.name}"):
            pool._move(1, after)


def test_a_page_has_one_writer_until_it_is_sealed(pool: PagePool) -> None:
    """Then nobody may write it again."""
    page = pool.allocate("a", 17).id
    assert pool.owners[page] == 17
    pool.seal(page)
    assert pool.owners[page] == NOBODY


def test_the_history_of_a_page_names_its_moves(pool: PagePool) -> None:
    """With the step that had been launched by then; other pages' moves are not in it."""
    page = pool.allocate("a", 1)
    pool.allocate("b", 2)
    pool.launch(3, np.array([page.id]))
    pool.seal(page.id)
    moves = [(event.step, event.state) for event in pool.history(page.id)]
    assert moves == [(0, State.ACTIVE), (3, State.SEALED)]
