"""Whose cached pages go when room is needed."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings, strategies as st

from engines.embedded.eviction import Unheld
from engines.embedded.pages import PagePool
from engines.embedded.prefix import PrefixCache
from engines.embedded.public import PUBLIC_DOMAIN

NUM_PAGES = 24


def cache_page(pool: PagePool, prefix: PrefixCache, domain: str, key: bytes) -> None:
    page = pool.allocate(domain, 1)
    pool.seal(page.id)
    prefix.insert(key, page)
    prefix.release(page)


def cached_by(pool: PagePool) -> Counter[str]:
    return Counter(pool.domain_of(page) or "" for page in range(1, pool.num_pages)
                   if pool.domain_of(page))  # fmt: skip


def test_a_busy_domain_pushes_out_itself_once_it_has_more_than_others() -> None:
    """However much it asks for: the quiet one keeps all that it had."""
    pool = PagePool(NUM_PAGES)
    prefix = PrefixCache(pool)
    for number in range(6):
        cache_page(pool, prefix, "quiet", b"quiet%d" % number)
    for number in range(500):
        if pool.num_free == 0:
            assert prefix.evict_one()
            pool.recycle()
        cache_page(pool, prefix, "busy", b"busy%d" % number)
    assert cached_by(pool) == {"quiet": 6, "busy": NUM_PAGES - 1 - 6}
    assert len(prefix.match([b"quiet0"])) == 1


def test_pages_in_use_count_as_the_domain_s() -> None:
    """One whose requests hold many pages gives up its cached ones first, however few."""
    pool = PagePool(NUM_PAGES)
    prefix = PrefixCache(pool)
    for number in range(6):
        cache_page(pool, prefix, "quiet", b"quiet%d" % number)
    cache_page(pool, prefix, "busy", b"busy")
    for _ in range(10):
        pool.allocate("busy", 1)
    assert prefix.evict_one()
    pool.recycle()
    assert cached_by(pool) == {"quiet": 6, "busy": 10}


def test_public_prompts_go_last_and_go_at_all() -> None:
    pool = PagePool(NUM_PAGES)
    prefix = PrefixCache(pool)
    for number in range(5):
        cache_page(pool, prefix, PUBLIC_DOMAIN, b"public%d" % number)
    cache_page(pool, prefix, "a", b"a")
    assert prefix.evict_one()
    assert prefix.match([b"a"]) == []
    for left in range(5):
        assert prefix.num_evictable == 5 - left
        assert prefix.evict_one()
    assert not prefix.evict_one()


def test_a_page_that_a_step_may_read_waits_and_another_domain_s_goes() -> None:
    """Room is needed now; its own is out of reach for as long as that step runs."""
    pool = PagePool(NUM_PAGES)
    prefix = PrefixCache(pool)
    for number in range(3):
        cache_page(pool, prefix, "large", b"large%d" % number)
    cache_page(pool, prefix, "small", b"small")
    large = [page for page in range(1, NUM_PAGES) if pool.domain_of(page) == "large"]
    pool.last_steps[large] = 1
    assert prefix.evict_one()
    assert prefix.match([b"small"]) == []
    assert not prefix.evict_one()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from("abc"), st.booleans())))
def test_no_domain_gives_up_a_page_while_another_has_more(
    moves: list[tuple[int, str, bool]],
) -> None:
    """Against a plain model: which pages there are, whose, and in which order they came."""
    model: dict[int, str] = {}
    unheld = Unheld(lambda domain: Counter(model.values())[domain])
    for page, domain, joins in moves:
        if joins and page not in model:
            model[page] = domain
            unheld.add(page, domain)
        elif not joins:
            model.pop(page, None)
            unheld.discard(page)
        assert len(unheld) == len(model)
        assert all((page in unheld) == (page in model) for page in range(10))
        found = list(unheld.candidates())
        sizes = Counter(model.values())
        assert sorted(model[page] for page in found) == sorted(sizes)
        taken = [sizes[model[page]] for page in found]
        assert taken == sorted(taken, reverse=True)
        for page in found:
            first = next(one for one, whose in model.items() if whose == model[page])
            assert page == first
