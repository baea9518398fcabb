"""What must hold of a page pool's books at any time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from engines.embedded import tags
from engines.embedded.door import LoadState
from engines.embedded.engine import EmbeddedEngine
from engines.embedded.pages import NOBODY, NULL_PAGE, PagePool, State


def check_books(pool: PagePool, tables: Iterable[Iterable[int]] | None = None) -> None:
    """Assert that the books balance; given all block tables, also that they explain `refs`."""
    states, refs = pool.states, pool.refs
    held = np.isin(states, (State.LOADING, State.ACTIVE, State.SEALED))
    assert (refs[~held] == 0).all(), "an unheld page has holders"
    assert (refs[states == State.ACTIVE] == 1).all(), "an active page has one owner"
    assert (refs[states == State.LOADING] == 1).all(), "a loading page has one owner"
    assert (refs[states == State.SEALED] > 0).all(), "a sealed page has a holder"
    written = np.isin(states, (State.LOADING, State.ACTIVE))
    assert ((pool.owners != NOBODY) == written).all(), "only active pages have a writer"
    given_up = np.isin(states, (State.FREE, State.RETIRING, State.ZEROING))
    slots = {tags.domain_slot(tag) for tag in pool.tags[given_up].tolist()}
    assert slots <= {tags.SYSTEM_SLOT}, "a page given up has an owner's tag"
    free = np.flatnonzero(states == State.FREE).tolist()
    assert sorted(pool._free) == free, "the free list names the free pages, each once"
    assert sorted(pool._retiring) == np.flatnonzero(states == State.RETIRING).tolist()
    assert all(pool.is_untouched(page) for page in free), "a free page is touched by nothing"
    assert sum(pool.count().values()) == pool.num_pages - 1
    assert len(np.unique(pool.tags)) == pool.num_pages, "two pages share a tag"
    assert pool.tags[NULL_PAGE] == tags.NULL_TAG
    for page in np.flatnonzero(held | (states == State.CACHED)).tolist():
        domain = pool.domain_of(page)
        assert domain is not None
        assert tags.domain_slot(int(pool.tags[page])) == pool.domains.slots[domain]
    if tables is not None:
        naming = Counter(page for table in tables for page in table)
        assert naming == {page: int(refs[page]) for page in np.flatnonzero(refs).tolist()}


def tables_of(engine: EmbeddedEngine) -> list[list[int]]:
    """All that is held: by running seqs their block tables and what they copy, and open loads."""
    running = engine.scheduler.running
    copied = [[seq.copied.id] for seq in running if seq.copied is not None]
    loads = [
        [page.id for page in load.pages]
        for load in engine.door._loads.values()
        if load.state is LoadState.OPEN
    ]
    return [*(list(seq.block_table) for seq in running), *copied, *loads]
