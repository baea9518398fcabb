"""The page pool: which physical page is in which state, held how often, under which tag.

Told domains and page ids; never told tokens or tensors. `tags` is the authority that every step is
checked against. States LOADING, RETIRING and ZEROING (transfers, fences, wiping) are to join the
enum; until then a freed page is reusable at once, which is safe as steps don't overlap.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from enum import IntEnum

import numpy as np

from engines.api import EngineFailed
from engines.embedded import tags
from engines.embedded.seq import Page

NULL_PAGE = 0  # fills unused places of block tables; never allocated, never written


class State(IntEnum):
    """FREE -> ACTIVE -> SEALED <-> CACHED -> FREE, and QUARANTINED, which nothing leaves."""

    FREE = 0
    ACTIVE = 1  # one owner, who writes it
    SEALED = 2  # full, computed, immutable; held by one seq or by several of its domain
    CACHED = 3  # sealed and held by nobody: kept for its content until the room is needed
    QUARANTINED = 4  # touched by a row that failed a check: out of use until a restart


class PagePool:
    """`num_pages` pages, the null page included."""

    def __init__(self, num_pages: int) -> None:
        assert num_pages > 1, "a pool needs a page beside the null page"
        self.num_pages = num_pages
        self.tags = np.zeros(num_pages, np.uint64)
        self.states = np.full(num_pages, State.FREE, np.uint8)
        self.refs = np.zeros(num_pages, np.int32)
        self.states[NULL_PAGE] = State.QUARANTINED
        self._generation = 0
        # Last in, first out: a pool that is never full stays small in memory.
        self._free = list(range(num_pages - 1, 0, -1))
        for page in self._free:
            self._retag(page, tags.SYSTEM_SLOT)
        self._slot_of_domain: dict[str, int] = {}
        self._holders: Counter[str] = Counter()  # live seqs and live pages of each domain
        self._domain_of_page: dict[int, str] = {}
        self._free_slots = deque(range(1, tags.QUARANTINE_SLOT))

    @property
    def num_free(self) -> int:
        """Pages ready to be allocated."""
        return len(self._free)

    def can_open(self, domain: str) -> bool:
        """Whether `open_domain` would find a slot."""
        return domain in self._slot_of_domain or bool(self._free_slots)

    def open_domain(self, domain: str) -> int:
        """The domain's slot, held until `close_domain`; a new one if the domain is new."""
        if domain not in self._slot_of_domain:
            self._slot_of_domain[domain] = self._free_slots.popleft()
        self._holders[domain] += 1
        return self._slot_of_domain[domain]

    def close_domain(self, domain: str) -> None:
        """Undo one `open_domain`. The slot is reused only after the last holder is gone."""
        assert self._holders[domain] > 0, "a domain closed more often than opened"
        self._holders[domain] -= 1
        if self._holders[domain] == 0:
            del self._holders[domain]
            self._free_slots.append(self._slot_of_domain.pop(domain))

    def allocate(self, domain: str) -> Page:
        """FREE -> ACTIVE, under a tag that no page ever had. Raises EngineFailed past the last."""
        if self._generation >= tags.GENERATION_LIMIT:
            raise EngineFailed("the page pool has used up its generations: restart the engine")
        page = self._free.pop()
        self._move(page, State.FREE, State.ACTIVE)
        self.refs[page] = 1
        self._domain_of_page[page] = domain
        self._retag(page, self.open_domain(domain))
        return Page(page, int(self.tags[page]))

    def seal(self, page: int) -> None:
        """ACTIVE -> SEALED: full and computed, never written again. The tag stays."""
        self._move(page, State.ACTIVE, State.SEALED)

    def share(self, page: int) -> None:
        """One more holder of a SEALED or CACHED page."""
        assert self.states[page] in (State.SEALED, State.CACHED), "only sealed pages are shared"
        self.states[page] = State.SEALED
        self.refs[page] += 1

    def release(self, page: int, *, keep: bool = False) -> None:
        """One holder less. The last one leaves the page CACHED if `keep`, else FREE."""
        assert self.refs[page] > 0, f"page {page} released more often than held"
        self.refs[page] -= 1
        if self.refs[page] > 0:
            assert self.states[page] == State.SEALED, "only sealed pages have several holders"
        elif keep:
            self._move(page, State.SEALED, State.CACHED)
        else:
            self._free_page(page)

    def evict(self, page: int) -> None:
        """CACHED -> FREE."""
        assert self.states[page] == State.CACHED, "only unheld pages are evicted"
        self._free_page(page)

    def quarantine(self, page: int) -> None:
        """Take a page with one holder out of use, for ever."""
        assert self.states[page] in (State.ACTIVE, State.SEALED)
        assert self.refs[page] == 1, "a shared page isn't its last holder's to condemn"
        self.refs[page] = 0
        self.states[page] = State.QUARANTINED
        self._retag(page, tags.QUARANTINE_SLOT)
        self.close_domain(self._domain_of_page.pop(page))

    def holds(self, page: Page) -> bool:
        """Whether the page still has the tag it had when `page` was recorded."""
        return 0 < page.id < self.num_pages and int(self.tags[page.id]) == page.tag

    def count(self) -> dict[str, int]:
        """Pages by state, without the null page."""
        numbers = np.bincount(self.states[1:], minlength=len(State))
        return {state.name.lower(): int(numbers[state]) for state in State}

    def check_invariants(self, tables: Iterable[Iterable[int]] | None = None) -> None:
        """Assert that the books balance; given all block tables, also that they explain refs."""
        unheld = np.isin(self.states, (State.FREE, State.CACHED, State.QUARANTINED))
        assert (self.refs[unheld] == 0).all(), "an unheld page has holders"
        assert (self.refs[self.states == State.ACTIVE] == 1).all(), "an active page has one owner"
        assert (self.refs[self.states == State.SEALED] > 0).all(), "a sealed page has a holder"
        assert sorted(self._free) == np.flatnonzero(self.states == State.FREE).tolist()
        assert sum(self.count().values()) == self.num_pages - 1
        assert len(np.unique(self.tags)) == self.num_pages, "two pages share a tag"
        assert self.tags[NULL_PAGE] == tags.NULL_TAG
        assert len(set(self._slot_of_domain.values())) == len(self._slot_of_domain)
        for page, domain in self._domain_of_page.items():
            assert tags.domain_slot(int(self.tags[page])) == self._slot_of_domain[domain]
        if tables is not None:
            naming = Counter(page for table in tables for page in table)
            held = np.flatnonzero(self.refs).tolist()
            assert naming == {page: int(self.refs[page]) for page in held}

    def _free_page(self, page: int) -> None:
        # A new tag at once, not only at the next allocation: a dangling reference shows today.
        self.states[page] = State.FREE
        self._retag(page, tags.SYSTEM_SLOT)
        self._free.append(page)
        self.close_domain(self._domain_of_page.pop(page))

    def _retag(self, page: int, domain_slot: int) -> None:
        self._generation += 1
        self.tags[page] = tags.pack(domain_slot, self._generation)

    def _move(self, page: int, before: State, after: State) -> None:
        assert self.states[page] == before, f"page {page}: {State(self.states[page]).name}"
        self.states[page] = after
