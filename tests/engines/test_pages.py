"""The page pool: states, references, tags and domain slots."""

from __future__ import annotations

import pytest

from engines.api import EngineFailed
from engines.embedded import tags
from engines.embedded.pages import NULL_PAGE, PagePool, State
from engines.embedded.seq import Page


@pytest.fixture
def pool() -> PagePool:
    return PagePool(4)


def test_the_null_page_is_never_allocated(pool: PagePool) -> None:
    """A pool of four pages gives out three, and none of them is page 0."""
    pages = [pool.allocate("a").id for _ in range(3)]
    assert sorted(pages) == [1, 2, 3]
    assert pool.num_free == 0
    assert pool.tags[NULL_PAGE] == tags.NULL_TAG


def test_the_tag_changes_on_allocation_and_on_free(pool: PagePool) -> None:
    """A page's tag before, during and after an allocation are three different ones."""
    before = pool.tags.copy()
    page = pool.allocate("a")
    assert page.tag not in before.tolist()
    pool.release(page.id)
    assert int(pool.tags[page.id]) not in [page.tag, *before.tolist()]
    assert not pool.holds(page)


def test_a_free_page_belongs_to_no_domain(pool: PagePool) -> None:
    """The tag of a freed page carries the system's slot."""
    page = pool.allocate("a")
    assert tags.domain_slot(page.tag) != tags.SYSTEM_SLOT
    pool.release(page.id)
    assert tags.domain_slot(int(pool.tags[page.id])) == tags.SYSTEM_SLOT


def test_sealing_and_sharing_leave_the_tag(pool: PagePool) -> None:
    """A tag recorded at allocation still holds while the page is sealed, shared and cached."""
    page = pool.allocate("a")
    pool.seal(page.id)
    pool.share(page.id)
    pool.release(page.id, keep=True)
    pool.release(page.id, keep=True)
    assert pool.states[page.id] == State.CACHED
    assert pool.holds(page)


def test_a_double_release_is_caught(pool: PagePool) -> None:
    """The second release of a page that nobody holds fails at once."""
    page = pool.allocate("a")
    pool.release(page.id)
    with pytest.raises(AssertionError, match="more often than held"):
        pool.release(page.id)


def test_an_active_page_cannot_be_shared(pool: PagePool) -> None:
    """Only sealed pages get a second holder."""
    with pytest.raises(AssertionError, match="sealed"):
        pool.share(pool.allocate("a").id)


def test_a_held_page_cannot_be_evicted(pool: PagePool) -> None:
    """Eviction is for cached pages."""
    page = pool.allocate("a")
    pool.seal(page.id)
    with pytest.raises(AssertionError, match="unheld"):
        pool.evict(page.id)


def test_a_quarantined_page_never_comes_back(pool: PagePool) -> None:
    """Its tag names the quarantine and the pool is one page smaller."""
    page = pool.allocate("a")
    pool.quarantine(page.id)
    assert tags.domain_slot(int(pool.tags[page.id])) == tags.QUARANTINE_SLOT
    assert pool.num_free == 2
    assert pool.count()["quarantined"] == 1
    pool.check_invariants([])


def test_a_shared_page_is_not_condemned(pool: PagePool) -> None:
    """Quarantine takes a page with one holder only."""
    page = pool.allocate("a")
    pool.seal(page.id)
    pool.share(page.id)
    with pytest.raises(AssertionError, match="shared"):
        pool.quarantine(page.id)


def test_a_domain_slot_is_reused_only_after_its_last_page(pool: PagePool) -> None:
    """While a cached page of a domain lives, no other domain gets its slot."""
    pool._free_slots.clear()
    pool._free_slots.append(7)
    page = pool.allocate("a")
    pool.seal(page.id)
    pool.release(page.id, keep=True)
    assert not pool.can_open("b")
    pool.evict(page.id)
    assert pool.open_domain("b") == 7


def test_the_pool_refuses_to_allocate_near_the_end_of_generations(pool: PagePool) -> None:
    """It fails for good instead of wrapping round."""
    pool._generation = tags.GENERATION_LIMIT
    with pytest.raises(EngineFailed, match="generations"):
        pool.allocate("a")


def test_a_page_out_of_range_is_not_held(pool: PagePool) -> None:
    """Neither the null page nor numbers outside the pool count as held."""
    assert not pool.holds(Page(NULL_PAGE, tags.NULL_TAG))
    assert not pool.holds(Page(4, 1))
    assert not pool.holds(Page(-1, int(pool.tags[-1])))


def test_check_invariants_notices_a_table_that_names_too_much(pool: PagePool) -> None:
    """References must equal the tables that name a page."""
    page = pool.allocate("a")
    pool.check_invariants([[page.id]])
    with pytest.raises(AssertionError):
        pool.check_invariants([[page.id], [page.id]])
