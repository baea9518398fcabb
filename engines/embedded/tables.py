"""Block tables: which pages a seq holds, from its admission to its end.

The only place that moves pages between seqs, pool and prefix cache. A seq is admitted only if the
pages it may still need are promised to it, so a running seq never runs out.
"""

from __future__ import annotations

from collections.abc import Callable

from engines.embedded import tags
from engines.embedded.pages import PagePool
from engines.embedded.prefix import ROOT, KeyScope, PrefixCache, content_key
from engines.embedded.seq import Page, Seq


class Tables:
    """`scope_of(domain)` gives the scope of content keys; None turns prefix sharing off."""

    def __init__(
        self, pool: PagePool, page_size: int, scope_of: Callable[[str], KeyScope] | None
    ) -> None:
        self.pool = pool
        self.prefix = PrefixCache(pool)
        self._page_size = page_size
        self._scope_of = scope_of
        self._promised = 0  # pages that admitted seqs may still allocate

    def num_pages(self, num_tokens: int) -> int:
        """Pages that hold `num_tokens` tokens."""
        return -(-num_tokens // self._page_size)

    def admit(self, seq: Seq) -> bool:
        """Give the seq its cached prefix and promise it the rest; False if there's no room."""
        # The prompt's last token is always computed: its logits choose the first answer token.
        reusable = (seq.prompt_len - 1) // self._page_size
        shared = self.prefix.match(self._keys(seq, reusable))
        promise = self.num_pages(seq.max_len) - len(shared)
        if promise > self._room() - self.prefix.num_unheld(shared):
            return False
        if not self._find_slot(seq.request.domain):
            return False
        seq.domain_slot = self.pool.open_domain(seq.request.domain)
        self._promised += promise
        self.prefix.take(shared)
        for page in shared:
            seq.hold(page)
        seq.num_sealed_pages = len(shared)
        seq.num_cached = seq.num_computed = len(shared) * self._page_size
        return True

    def grow(self, seq: Seq, num_tokens: int) -> None:
        """Allocate until the table holds `num_tokens` tokens."""
        while len(seq.block_table) < self.num_pages(num_tokens):
            if self.pool.num_free == 0:
                self.prefix.evict_oldest()
            seq.hold(self.pool.allocate(seq.request.domain))
            self._promised -= 1

    def seal(self, seq: Seq) -> None:
        """Seal and index the pages that the last step filled."""
        full = seq.num_computed // self._page_size
        for index in range(seq.num_sealed_pages, full):
            page = Page(seq.block_table[index], seq.tags[index])
            if self._owns(seq, page):
                self.pool.seal(page.id)
                if keys := self._keys(seq, full):
                    self.prefix.insert(keys[index], page)
        seq.num_sealed_pages = full

    def release(self, seq: Seq) -> None:
        """Take all pages from an ended seq. Its last pages become the oldest in the cache."""
        for page in reversed(seq.pages()):
            if self._owns(seq, page):  # else it's someone else's by now, and not ours to free
                self.prefix.release(page)
        self._close(seq)

    def quarantine(self, seq: Seq) -> None:
        """Take all pages from a seq that failed a check; those that it wrote go out of use."""
        num_shared = seq.num_cached // self._page_size
        for index, page in reversed(list(enumerate(seq.pages()))):
            if not self._owns(seq, page):
                continue
            if index >= num_shared and self.pool.refs[page.id] == 1:
                self.prefix.forget(page.id)
                self.pool.quarantine(page.id)
            else:
                self.prefix.release(page)
        self._close(seq)

    def _close(self, seq: Seq) -> None:
        self._promised -= self.num_pages(seq.max_len) - len(seq.block_table)
        self.pool.close_domain(seq.request.domain)
        seq.block_table.clear()
        seq.tags.clear()

    def _room(self) -> int:
        return self.pool.num_free + self.prefix.num_evictable - self._promised

    def _find_slot(self, domain: str) -> bool:
        while not self.pool.can_open(domain) and self.prefix.num_evictable:
            self.prefix.evict_oldest()
        return self.pool.can_open(domain)

    def _owns(self, seq: Seq, page: Page) -> bool:
        return self.pool.holds(page) and tags.domain_slot(page.tag) == seq.domain_slot

    def _keys(self, seq: Seq, num_pages: int) -> list[bytes]:
        """Content keys of the seq's first pages, computed once each; none without sharing."""
        if self._scope_of is None:
            return []
        keys, size = seq.page_keys, self._page_size
        while len(keys) < num_pages:
            tokens = seq.tokens[len(keys) * size : (len(keys) + 1) * size]
            parent = keys[-1] if keys else ROOT
            keys.append(content_key(self._scope_of(seq.request.domain), parent, tokens))
        return keys[:num_pages]
