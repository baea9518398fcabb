"""The door for KV that another process computes: it fills pages through shared memory.

`open` gives it pages that nobody reads (LOADING, pinned); it writes their bytes and tells their
checksums; `commit` verifies all of it before the pages can be found by a prompt of that domain.
A load that is given up, by either side, retires its pages; they are reused only once its writer has
said that its last write has ended (`drained`): a message that it will stop proves nothing.

Protocol: commit is idempotent, late or replayed messages change nothing, and a load of another
incarnation of the pool is refused.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import structlog
import xxhash

from engines.api import EngineError
from engines.embedded.kv import PageBytes
from engines.embedded.pages import State
from engines.embedded.public import PUBLIC_DOMAIN
from engines.embedded.seq import Page
from engines.embedded.tables import Tables

PATIENCE_S = 60.0  # for a load, from its opening to its end: no timeout may free its pages
MAX_TOKEN = 1 << 32
REMEMBERED = 1024  # loads that have ended, so that a late message about one changes nothing

log = structlog.get_logger()


class LoadRefused(EngineError):
    """This load can't be opened, or isn't what it claims to be: nothing of it will be read."""

    code = "load_refused"


class LoadState(Enum):
    """OPEN -> COMMITTED, or OPEN -> ABANDONED -> DRAINED."""

    OPEN = "open"
    COMMITTED = "committed"
    ABANDONED = "abandoned"
    DRAINED = "drained"


ENDED = (LoadState.COMMITTED, LoadState.DRAINED)


@dataclass(slots=True)
class Load:
    """What the writer is given: where to write what. `offsets` are bytes in the shared memory."""

    id: str
    incarnation: str  # of the pool: another boot's loads are refused
    domain: str
    first_page: int  # pages before this one are cached already
    pages: list[Page]
    offsets: list[int]
    page_bytes: int
    opened_s: float
    state: LoadState = LoadState.OPEN
    keys: list[bytes] = field(default_factory=list)


class Door:
    """Loads of one engine. Called between its steps, from its thread."""

    def __init__(
        self, tables: Tables, kv: PageBytes, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.incarnation = secrets.token_hex(16)
        self._tables = tables
        self._pool = tables.pool
        self._kv = kv
        self._clock = clock
        self._loads: dict[str, Load] = {}

    def open(self, domain: str, token_ids: list[int]) -> Load:
        """Pages for the whole pages of this prompt that aren't cached. Raises LoadRefused."""
        if domain == PUBLIC_DOMAIN or not all(0 <= token < MAX_TOKEN for token in token_ids):
            raise LoadRefused("such a prompt is nobody's")
        keys = self._tables.keys_of(domain, token_ids)
        if not keys:
            raise LoadRefused("nothing to load: no whole page, or prefixes aren't cached here")
        known = self._tables.prefix.match(keys)
        if len(known) == len(keys):
            raise LoadRefused("nothing to load: all of it is cached already")
        pages = self._allocate(domain, len(keys) - len(known))
        size = self._kv.page_bytes
        load = Load(
            id=secrets.token_hex(16),
            incarnation=self.incarnation,
            domain=domain,
            first_page=len(known),
            pages=pages,
            offsets=[page.id * size for page in pages],
            page_bytes=size,
            keys=keys[len(known) :],
            opened_s=self._clock(),
        )
        self._forget_old()
        self._loads[load.id] = load
        return load

    def commit(self, load_id: str, incarnation: str, checksums: list[int]) -> None:
        """The writer has ended: if all is as it says, the pages can be found from now on.

        `checksums` are XXH3-64 of each page's bytes. Raises LoadRefused, and gives the pages up.
        """
        load = self._known(load_id, incarnation)
        if load.state is LoadState.COMMITTED:
            return
        if load.state is not LoadState.OPEN:
            raise LoadRefused("the load has been given up")
        self._unpin(load)  # its writer has said that it writes no more
        try:
            self._verify(load, checksums)
        except LoadRefused:
            self._give_up(load, LoadState.DRAINED)
            raise
        for key, page in zip(load.keys, load.pages, strict=True):
            self._tables.adopt(key, page)
        load.keys.clear()
        load.state = LoadState.COMMITTED

    def abandon(self, load_id: str, incarnation: str) -> None:
        """Give a load up. Its pages stay out of use until the writer says `drained`."""
        load = self._known(load_id, incarnation)
        if load.state is LoadState.OPEN:
            self._give_up(load, LoadState.ABANDONED)

    def drained(self, load_id: str, incarnation: str) -> None:
        """The writer's last write has ended: pages of an abandoned load may be reused."""
        load = self._known(load_id, incarnation)
        if load.state is LoadState.OPEN:
            self._give_up(load, LoadState.ABANDONED)
        if load.state is LoadState.ABANDONED:
            self._unpin(load)
            load.state = LoadState.DRAINED

    def quarantine(self, load_id: str, incarnation: str) -> None:
        """The writer is never heard of again: what it may still write is never used again."""
        load = self._known(load_id, incarnation)
        if load.state is LoadState.OPEN:
            self._give_up(load, LoadState.ABANDONED)
        if load.state is LoadState.ABANDONED:
            for page in load.pages:
                self._pool.quarantine(page.id)
            load.state = LoadState.DRAINED

    def expire(self) -> None:
        """Quarantine what loads hold whose writers have been silent for too long."""
        for load in list(self._loads.values()):
            if load.state not in ENDED and self._clock() - load.opened_s > PATIENCE_S:
                log.error("kv_load_expired", domain=load.domain, pages=len(load.pages))
                self.quarantine(load.id, load.incarnation)

    def _forget_old(self) -> None:
        ended = [load for load in self._loads.values() if load.state in ENDED]
        for load in ended[:-REMEMBERED]:
            del self._loads[load.id]

    def _allocate(self, domain: str, num_pages: int) -> list[Page]:
        pages: list[Page] = []
        for _ in range(num_pages):
            page = self._tables.allocate_loading(domain)
            if page is None:
                for taken in pages:
                    self._pool.unpin(taken.id)
                    self._pool.release(taken.id)
                raise LoadRefused(f"no room for {num_pages} pages")
            self._pool.pin(page.id)
            pages.append(page)
        return pages

    def _verify(self, load: Load, checksums: list[int]) -> None:
        if len(checksums) != len(load.pages):
            raise LoadRefused(f"{len(checksums)} checksums for {len(load.pages)} pages")
        for page, checksum in zip(load.pages, checksums, strict=True):
            if not self._pool.holds(page) or self._pool.states[page.id] != State.LOADING:
                raise LoadRefused(f"page {page.id} is not the load's any more")
            if xxhash.xxh3_64_intdigest(self._kv.bytes_of(page.id).data) != checksum:
                raise LoadRefused(f"page {page.id} holds other bytes than its writer says")

    def _give_up(self, load: Load, state: LoadState) -> None:
        load.keys.clear()
        for page in load.pages:
            if self._pool.holds(page):
                self._pool.release(page.id)
        load.state = state

    def _unpin(self, load: Load) -> None:
        for page in load.pages:
            self._pool.unpin(page.id)

    def _known(self, load_id: str, incarnation: str) -> Load:
        if incarnation != self.incarnation:
            raise LoadRefused("the load is of an earlier life of this pool")
        if load_id not in self._loads:
            raise LoadRefused("no such load")
        return self._loads[load_id]
