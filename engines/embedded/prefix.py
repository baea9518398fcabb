"""Pages kept for their content, to be shared by later seqs of the same domain.

Told full, computed pages and what they hold. An entry records the tag its page had when sealed: if
the page's tag is another one by now, the entry is worthless and the lookup misses.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING

from engines.embedded.eviction import Unheld
from engines.embedded.pages import PagePool, State
from engines.embedded.seq import Page

if TYPE_CHECKING:
    from hashlib import _Hash as HASH

ROOT = b""  # parent key of a seq's first page


@dataclass(frozen=True, slots=True)
class KeyScope:
    """Everything beside the tokens that decides what bytes a page holds, and who may read them."""

    domain: str
    model_revision: str
    adapter: str
    arithmetic: str  # which kernels, and how they round
    kv_dtype: str
    kv_scales: str
    layout: str
    page_size: int


def content_key(scope: KeyScope, parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The key of one page: SHA-256 over its scope, its parent's key and its tokens.

    Each part is preceded by its length, so that no two lists of parts spell the same bytes.
    """
    digest = _begun(scope).copy()
    for part in (parent, struct.pack(f"<{len(token_ids)}I", *token_ids)):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


@lru_cache(maxsize=1024)  # scopes, one a domain: a page is sealed every few steps
def _begun(scope: KeyScope) -> HASH:
    digest = sha256()
    for part in (str(value).encode() for value in astuple(scope)):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest


class PrefixCache:
    """The index from content keys to pages, and those of them that nobody holds."""

    def __init__(self, pool: PagePool) -> None:
        self.is_closed = False
        self._pool = pool
        self._pages: dict[bytes, Page] = {}
        self._keys: dict[int, bytes] = {}  # page id -> its key in `_pages`
        self._evictable = Unheld(pool.domains.num_holders)

    @property
    def num_evictable(self) -> int:
        """Pages that nobody holds."""
        return len(self._evictable)

    def match(self, keys: Sequence[bytes]) -> list[Page]:
        """The longest run of leading keys whose pages are still what they were when sealed."""
        found: list[Page] = []
        for key in () if self.is_closed else keys:
            page = self._pages.get(key)
            if page is None or not self._is_intact(page):
                break
            found.append(page)
        return found

    def num_unheld(self, pages: Sequence[Page]) -> int:
        """How many of the pages would stop being evictable if they were taken."""
        return sum(page.id in self._evictable for page in pages)

    def take(self, pages: Sequence[Page]) -> None:
        """Add a holder to each of the matched pages."""
        for page in pages:
            self._pool.share(page.id)
            self._evictable.discard(page.id)

    def insert(self, key: bytes, page: Page) -> None:
        """Index a sealed page, unless an intact page of the same content is indexed already."""
        assert self._pool.states[page.id] == State.SEALED, "only sealed pages are indexed"
        self.forget(page.id)
        if self.is_closed:
            return
        known = self._pages.get(key)
        if known is not None and self._is_intact(known):
            return
        if known is not None:
            self.forget(known.id)
        self._pages[key] = page
        self._keys[page.id] = key

    def release(self, page: Page) -> None:
        """One holder less; the last one leaves an indexed page cached and evictable."""
        keep = page.id in self._keys
        self._pool.release(page.id, keep=keep)
        if keep and self._pool.refs[page.id] == 0:
            self._evictable.add(page.id, self._pool.domain_of(page.id) or "")

    def evict_one(self) -> bool:
        """Give up a page that nobody holds, of whoever has the most; False if there is none.

        One that a step on its way may still read is no help yet, and those after it are younger.
        """
        for page in self._evictable.candidates():
            if self._pool.is_untouched(page):
                self._evict(page)
                return True
        return False

    def purge(self, domain: str) -> None:
        """Let nobody find a page of this domain again; those that nobody holds are given up."""
        for page in list(self._keys):
            if self._pool.domain_of(page) == domain:
                if page in self._evictable:
                    self._evict(page)
                else:
                    self.forget(page)

    def close(self) -> None:
        """Nothing is found any more, and nothing is kept: this engine is to be replaced."""
        self.is_closed = True

    def condemn(self, page: int) -> None:
        """Take a page out of use, whoever holds it, if it isn't already."""
        if self._pool.states[page] != State.QUARANTINED:
            self.forget(page)
            self._evictable.discard(page)
            self._pool.quarantine(page)

    def forget(self, page: int) -> None:
        """Drop the page's entry, if it has one."""
        if (key := self._keys.pop(page, None)) is not None:
            del self._pages[key]

    def _evict(self, page: int) -> None:
        self._evictable.discard(page)
        self.forget(page)
        self._pool.evict(page)

    def _is_intact(self, page: Page) -> bool:
        sealed = self._pool.states[page.id] in (State.SEALED, State.CACHED)
        return bool(sealed) and self._pool.holds(page)
