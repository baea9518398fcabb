"""Content keys, and the index from keys to pages."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from engines.embedded.pages import PagePool
from engines.embedded.prefix import ROOT, KeyScope, PrefixCache, content_key
from engines.embedded.seq import Page

SCOPE = KeyScope("tenant", "rev", "", "bfloat16", "bfloat16", "unit", "layout", 16)


@pytest.mark.parametrize("field", [field.name for field in fields(KeyScope)])
def test_every_field_of_the_scope_changes_the_key(field: str) -> None:
    """Perturb each field in turn: the key is another one."""
    other: Any = 32 if field == "page_size" else "other"
    assert content_key(replace(SCOPE, **{field: other}), ROOT, [1]) != content_key(SCOPE, ROOT, [1])


def test_parent_and_tokens_change_the_key() -> None:
    """So do the parent, each token, and their order."""
    keys = [
        content_key(SCOPE, ROOT, [1, 2]),
        content_key(SCOPE, ROOT, [2, 1]),
        content_key(SCOPE, ROOT, [1]),
        content_key(SCOPE, content_key(SCOPE, ROOT, [1]), [2]),
    ]
    assert len(set(keys)) == 4


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"domain": "ab", "model_revision": "c"}, {"domain": "a", "model_revision": "bc"}),
        ({"adapter": "x", "kv_dtype": ""}, {"adapter": "", "kv_dtype": "x"}),
        ({"domain": "a\x00"}, {"domain": "a"}),
        ({"page_size": 1, "layout": "11"}, {"page_size": 11, "layout": "1"}),
    ],
)
def test_neighbouring_fields_cannot_be_confused(
    left: dict[str, Any], right: dict[str, Any]
) -> None:
    """("ab", "c") and ("a", "bc") differ: each part carries its length."""
    keys = [content_key(replace(SCOPE, **fields), ROOT, [1]) for fields in (left, right)]
    assert keys[0] != keys[1]


def test_a_parent_cannot_be_confused_with_tokens() -> None:
    """The same bytes as parent or as tokens give different keys."""
    token = (7).to_bytes(4, "little")
    assert content_key(SCOPE, token, []) != content_key(SCOPE, ROOT, [7])


@pytest.fixture
def pool() -> PagePool:
    return PagePool(6)


@pytest.fixture
def prefix(pool: PagePool) -> PrefixCache:
    return PrefixCache(pool)


def cached_page(pool: PagePool, prefix: PrefixCache, key: bytes) -> Page:
    page = pool.allocate("a", 1)
    pool.seal(page.id)
    prefix.insert(key, page)
    prefix.release(page)
    return page


def test_a_match_is_the_longest_leading_run(pool: PagePool, prefix: PrefixCache) -> None:
    """A gap ends the match even if later keys are known."""
    first = cached_page(pool, prefix, b"1")
    cached_page(pool, prefix, b"3")
    assert prefix.match([b"1", b"2", b"3"]) == [first]


def test_an_entry_whose_tag_has_moved_on_is_a_miss(pool: PagePool, prefix: PrefixCache) -> None:
    """Evict a page behind the index's back and reuse it: the entry is not believed."""
    page = cached_page(pool, prefix, b"1")
    pool.evict(page.id)
    assert prefix.match([b"1"]) == []
    while pool.num_free:
        again = pool.allocate("a", 1)
        pool.seal(again.id)
    assert prefix.match([b"1"]) == []


def test_an_unsealed_page_is_not_indexed(pool: PagePool, prefix: PrefixCache) -> None:
    """What is still being written can't be found."""
    with pytest.raises(AssertionError, match="sealed"):
        prefix.insert(b"1", pool.allocate("a", 1))


def test_the_first_page_of_a_content_stays_indexed(pool: PagePool, prefix: PrefixCache) -> None:
    """A second page of equal content is not kept once its holder is gone."""
    first = cached_page(pool, prefix, b"1")
    second = pool.allocate("a", 1)
    pool.seal(second.id)
    prefix.insert(b"1", second)
    prefix.release(second)
    assert prefix.match([b"1"]) == [first]
    assert not pool.holds(second)


def test_the_longest_unheld_page_is_evicted_first(pool: PagePool, prefix: PrefixCache) -> None:
    """Taking and releasing a page makes it the youngest."""
    old, young = cached_page(pool, prefix, b"1"), cached_page(pool, prefix, b"2")
    prefix.take([old])
    assert prefix.num_evictable == 1
    prefix.release(old)
    prefix.evict_one()
    assert prefix.match([b"1"]) == [old]
    assert not pool.holds(young)
