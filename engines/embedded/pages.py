"""The page pool: which physical page is in which state, held how often, under which tag.

Told domains, page ids and steps; never told tokens or tensors. `tags` is the authority that every
step is checked against. All moves are here, each asserted, under one lock: a page leaves RETIRING
only when the last step and the last transfer that can touch it have ended (the fence), and becomes
FREE only when its bytes are wiped.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engines.api import EngineFailed
from engines.embedded import huge, tags
from engines.embedded.domains import Domains
from engines.embedded.seq import Page

NULL_PAGE = 0  # fills unused places of block tables; never allocated, never written
NOBODY = 0  # owner of a page that no seq may write
EVENTS = 4096  # moves remembered, for whoever looks into a mismatch


class State(IntEnum):
    """FREE -> LOADING | ACTIVE -> SEALED <-> CACHED -> RETIRING -> ZEROING -> FREE."""

    FREE = 0
    LOADING = 1  # the target of a transfer: another process writes it, nobody reads
    ACTIVE = 2  # one owner, who writes it
    SEALED = 3  # full, computed, immutable; held by one seq or by several of its domain
    CACHED = 4  # sealed and held by nobody: kept for its content until the room is needed
    RETIRING = 5  # given up, but a step or a transfer may still touch it
    ZEROING = 6  # out of reach of everyone, being wiped
    QUARANTINED = 7  # touched by a row that failed a check: out of use until a restart


MOVES: dict[State, tuple[State, ...]] = {
    State.FREE: (State.LOADING, State.ACTIVE, State.QUARANTINED),
    State.LOADING: (State.ACTIVE, State.SEALED, State.RETIRING, State.QUARANTINED),
    State.ACTIVE: (State.SEALED, State.RETIRING, State.QUARANTINED),
    State.SEALED: (State.CACHED, State.RETIRING, State.QUARANTINED),
    State.CACHED: (State.SEALED, State.RETIRING, State.QUARANTINED),
    State.RETIRING: (State.ZEROING, State.QUARANTINED),
    State.ZEROING: (State.FREE,),
    State.QUARANTINED: (),
}


class Event(NamedTuple):
    """One move of one page, for the record of a mismatch."""

    step: int  # the last one that was launched by then
    page: int
    state: State
    tag: int


class PagePool:
    """`num_pages` pages, the null page included. `wipe` zeroes the bytes of the pages named."""

    def __init__(
        self,
        num_pages: int,
        wipe: Callable[[list[int]], None] = lambda pages: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert num_pages > 1, "a pool needs a page beside the null page"
        self.num_pages = num_pages
        self.wipe = wipe
        self.clock = clock
        self.lock = threading.RLock()
        self.domains = Domains()
        self.tags = huge.zeros(num_pages)
        self.states = np.full(num_pages, State.FREE, np.uint8)
        self.refs = np.zeros(num_pages, np.int32)
        self.pins = np.zeros(num_pages, np.int32)  # transfers that may still touch the page
        self.owners = np.full(num_pages, NOBODY, np.int64)  # serial of the seq that may write
        self.last_steps = np.zeros(num_pages, np.int64)  # the last step that may touch the page
        self.moved_at = np.full(num_pages, clock())  # when the page came into its state
        self.num_quarantined = 0  # the null page apart
        self.completed_step = 0
        self.launched_step = 0
        self.events: deque[Event] = deque(maxlen=EVENTS)
        self.states[NULL_PAGE] = State.QUARANTINED
        self._generation = 0
        # Last in, first out: a pool that is never full stays small in memory.
        self._free = list(range(num_pages - 1, 0, -1))
        for page in self._free:
            self._retag(page, tags.SYSTEM_SLOT)
        self._retiring: deque[int] = deque()
        self._domain_of_page: dict[int, str] = {}

    @property
    def num_free(self) -> int:
        """Pages ready to be allocated."""
        return len(self._free)

    @property
    def num_retiring(self) -> int:
        """Pages that will be free once the steps on their way have ended."""
        return int(((self.states == State.RETIRING) & (self.pins == 0)).sum())

    @property
    def num_in_transfer(self) -> int:
        """Pages that come back once their transfers have ended: nobody knows when."""
        return int(((self.states != State.QUARANTINED) & (self.pins > 0)).sum())

    @property
    def limbo_age_s(self) -> float:
        """Since when the page that was given up first waits for its fence; 0 if none waits."""
        with self.lock:
            return self.clock() - float(self.moved_at[self._retiring[0]]) if self._retiring else 0.0

    @property
    def generation(self) -> int:
        """How many tags there have been."""
        return self._generation

    @property
    def is_spent(self) -> bool:
        """Whether the generations near their end: time for a new engine, long before a wrap."""
        return self._generation >= tags.GENERATION_LIMIT

    def allocate(self, domain: str, owner: int, state: State = State.ACTIVE) -> Page:
        """FREE -> ACTIVE or LOADING, under a tag that no page ever had, for `owner` to write.

        Raises EngineFailed when even the reserve of generations is used up.
        """
        with self.lock:
            page = self._free.pop()
            self._move(page, state, self.domains.open(domain))
            self.refs[page] = 1
            self.owners[page] = owner
            self._domain_of_page[page] = domain
            return Page(page, int(self.tags[page]))

    def seal(self, page: int) -> None:
        """ACTIVE or LOADING -> SEALED: full and computed, never written again. The tag stays."""
        with self.lock:
            self._move(page, State.SEALED)
            self.owners[page] = NOBODY

    def share(self, page: int) -> None:
        """One more holder of a SEALED or CACHED page."""
        with self.lock:
            if self.states[page] != State.SEALED:
                assert self.states[page] == State.CACHED, "only sealed pages are shared"
                self._move(page, State.SEALED)
            self.refs[page] += 1

    def release(self, page: int, *, keep: bool = False) -> None:
        """One holder less. The last one leaves the page CACHED if `keep`, else it retires."""
        with self.lock:
            assert self.refs[page] > 0, f"page {page} released more often than held"
            if self.refs[page] > 1:
                assert self.states[page] == State.SEALED, "only sealed pages have several holders"
                self.refs[page] -= 1
                return
            self.refs[page] = 0
            if keep:
                self._move(page, State.CACHED)
            else:
                self._retire(page)

    def evict(self, page: int) -> None:
        """CACHED -> RETIRING."""
        with self.lock:
            assert self.states[page] == State.CACHED, "only unheld pages are evicted"
            self._retire(page)

    def quarantine(self, page: int) -> None:
        """Take a page out of use for ever. Whoever else holds it fails its next check."""
        with self.lock:
            if self.states[page] == State.RETIRING:
                self._retiring.remove(page)
            if self.states[page] == State.FREE:
                self._free.remove(page)
            self._move(page, State.QUARANTINED, tags.QUARANTINE_SLOT)
            self.num_quarantined += 1
            self.refs[page] = 0
            self.owners[page] = NOBODY
            if (domain := self._domain_of_page.pop(page, None)) is not None:
                self.domains.close(domain)

    def pin(self, page: int) -> None:
        """A transfer begins that may touch the page: it can't be reused before `unpin`."""
        with self.lock:
            self.pins[page] += 1

    def unpin(self, page: int) -> None:
        """A transfer has ended, whatever became of it: nothing of it touches the page any more."""
        with self.lock:
            assert self.pins[page] > 0, f"page {page} unpinned more often than pinned"
            self.pins[page] -= 1

    def launch(self, step: int, pages: NDArray[np.int64]) -> None:
        """From now on until `complete(step)`, this step may touch these pages."""
        with self.lock:
            self.last_steps[pages] = step
            self.launched_step = step

    def complete(self, step: int) -> None:
        """This step, and all before it, touch nothing any more."""
        with self.lock:
            self.completed_step = step

    def recycle(self) -> None:
        """RETIRING -> ZEROING -> FREE, for all pages whose fence has passed."""
        with self.lock:
            passed = {page: None for page in self._retiring if self.is_untouched(page)}
            if not passed:
                return
            self._retiring = deque(page for page in self._retiring if page not in passed)
            for page in passed:
                self._move(page, State.ZEROING)
            self.wipe(list(passed))
            for page in passed:
                self._move(page, State.FREE)
                self._free.append(page)
                self.domains.close(self._domain_of_page.pop(page))

    def is_untouched(self, page: int) -> bool:
        """Whether no step and no transfer can touch the page any more."""
        return bool(self.last_steps[page] <= self.completed_step and self.pins[page] == 0)

    def holds(self, page: Page) -> bool:
        """Whether the page still has the tag it had when `page` was recorded."""
        return 0 < page.id < self.num_pages and int(self.tags[page.id]) == page.tag

    def domain_of(self, page: int) -> str | None:
        """The domain whose bytes the page holds, until it is wiped."""
        return self._domain_of_page.get(page)

    def history(self, page: int) -> list[Event]:
        """The page's remembered moves, the last 16 at most."""
        return [event for event in list(self.events) if event.page == page][-16:]

    def count(self) -> dict[str, int]:
        """Pages by state, without the null page."""
        numbers = np.bincount(self.states[1:], minlength=len(State))
        return {state.name.lower(): int(numbers[state]) for state in State}

    def _retire(self, page: int) -> None:
        # A new tag at once, not only at the next allocation: a dangling reference shows today.
        self._move(page, State.RETIRING, tags.SYSTEM_SLOT)
        self.owners[page] = NOBODY
        self._retiring.append(page)

    def _retag(self, page: int, domain_slot: int) -> None:
        self._generation += 1
        if self._generation >> tags.GENERATION_BITS:
            raise EngineFailed("the page pool has used up its generations: restart the engine")
        self.tags[page] = tags.pack(domain_slot, self._generation)

    def _move(self, page: int, after: State, domain_slot: int | None = None) -> None:
        before = State(self.states[page])
        assert after in MOVES[before], f"page {page} can't go from {before.name} to {after.name}"
        self.states[page] = after
        self.moved_at[page] = self.clock()
        if domain_slot is not None:
            self._retag(page, domain_slot)
        self.events.append(Event(self.launched_step, page, after, int(self.tags[page])))
