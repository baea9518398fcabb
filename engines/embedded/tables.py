"""Block tables: which pages a seq holds, from its admission to its end.

The only place that moves pages between seqs, pool and prefix cache. End, abort, preemption and a
failed check take one path: the pages are given up here, and the pool's fences do the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engines.embedded import tags
from engines.embedded.pages import PagePool, State
from engines.embedded.prefix import ROOT, KeyScope, PrefixCache, content_key
from engines.embedded.public import PUBLIC_DOMAIN
from engines.embedded.scrub import Scrubber
from engines.embedded.seq import Chunk, Page, Phase, Seq

LOADER = -1  # owner of a page that a transfer fills: no seq's serial


class Tables:
    """`scope_of(domain)` gives the scope of content keys; None turns prefix sharing off."""

    def __init__(
        self,
        pool: PagePool,
        page_size: int,
        scope_of: Callable[[str], KeyScope] | None,
        scrubber: Scrubber | None = None,
    ) -> None:
        self.pool = pool
        self.prefix = PrefixCache(pool)
        self.scrubber = scrubber
        self.page_size = page_size
        self._scope_of = scope_of
        self._num_open = 0  # seqs that hold pages

    @property
    def num_coming(self) -> int:
        """Pages that can be had once the steps on their way have ended."""
        return self.pool.num_retiring + self.prefix.num_evictable

    def num_pages(self, num_tokens: int) -> int:
        """Pages that hold `num_tokens` tokens."""
        return -(-num_tokens // self.page_size)

    def admit(self, seq: Seq) -> bool:
        """Begin a life of the seq with its cached prefix; False if there's no room for its tokens.

        Beside them, each seq that runs is left room for one more page: else the newest would take
        what the others need next, and be preempted at once.
        """
        if not self._open_domains(seq):
            return False
        if self._begin(seq):
            return True
        self._close_domains(seq)
        return False

    def _begin(self, seq: Seq) -> bool:
        found = self._cached(seq)
        # The newest token is always computed: its logits choose the next one. If its page is cached
        # whole, a copy of that page is written instead, since a shared page never is.
        is_whole = bool(found) and len(found) * self.page_size == len(seq.tokens)
        if is_whole and not self._fits(seq, found, len(found) - 1):
            found, is_whole = found[:-1], False  # no room for both: the page is computed again
        shared, copied = (found[:-1], found[-1]) if is_whole else (found, None)
        if not self._fits(seq, found, len(shared)):
            return False
        seq.begin(len(seq.tokens) - 1 if is_whole else len(shared) * self.page_size)
        self._num_open += 1
        self.prefix.take(found)
        for page in shared:
            seq.hold(page)
        seq.num_shared_pages = seq.num_sealed_pages = len(shared)
        seq.copied = copied
        return True

    def grow(self, seq: Seq, num_tokens: int) -> bool:
        """Allocate until the table holds `num_tokens` tokens; False if pages run out before."""
        while len(seq.block_table) * self.page_size < num_tokens:
            if not self._free_one():
                return False
            domain = self._domain(seq, len(seq.block_table))
            seq.hold(self.pool.allocate(domain, seq.serial))
        return True

    def computed(self, chunk: Chunk, length: int) -> None:
        """A live chunk has been computed: let go of what was copied, seal and index full pages.

        KV counts up to `length`: behind it lies what rejected drafts left, to be written over.
        """
        seq = chunk.seq
        seq.num_computed = length
        if chunk.source is not None:
            self._let_go_of_copied(seq)
        full = seq.num_computed // self.page_size
        for index in range(seq.num_sealed_pages, full):
            page = Page(seq.block_table[index], seq.tags[index])
            if self._owns(seq, index, page):
                self.seal(seq, index, page)
        seq.num_sealed_pages = full

    def keys_of(self, domain: str, token_ids: Sequence[int]) -> list[bytes]:
        """Content keys of the whole pages of a prompt; none without sharing."""
        if self._scope_of is None:
            return []
        scope, size = self._scope_of(domain), self.page_size
        keys = [ROOT]
        for start in range(0, len(token_ids) - size + 1, size):
            keys.append(content_key(scope, keys[-1], token_ids[start : start + size]))
        return keys[1:]

    def allocate_loading(self, domain: str) -> Page | None:
        """A page for a transfer to fill; None if there is no room."""
        if not self._find_slot(domain) or not self._free_one():
            return None
        return self.pool.allocate(domain, LOADER, State.LOADING)

    def adopt(self, key: bytes, page: Page) -> None:
        """A page that a transfer has filled: sealed, and cached for whoever has its prompt."""
        self.pool.seal(page.id)
        if self.scrubber is not None:
            self.scrubber.seal(page.id)
        self.prefix.insert(key, page)
        self.prefix.release(page)

    def release(self, seq: Seq, phase: Phase) -> None:
        """Take all pages from a seq. Its last pages become the oldest in the cache."""
        for index, page in reversed(list(enumerate(seq.pages()))):
            if not self._owns(seq, index, page):
                continue  # it's someone else's by now, and not ours to free
            if index >= seq.num_sealed_pages and self.pool.states[page.id] == State.SEALED:
                self._condemn_early(page)
            else:
                self.prefix.release(page)
        self._close(seq, phase)

    def quarantine(self, seq: Seq, phase: Phase) -> None:
        """Take all pages from a seq that failed a check; those that it wrote go out of use."""
        for index, page in reversed(list(enumerate(seq.pages()))):
            is_writer = self.pool.owners[page.id] == seq.serial
            owns = self._owns(seq, index, page)
            wrote = owns and index >= seq.num_shared_pages
            if wrote:
                self.prefix.forget(page.id)  # others that share it go on; nobody else finds it
            if is_writer or (wrote and self.pool.refs[page.id] == 1):
                self.prefix.condemn(page.id)
            elif owns:
                self.prefix.release(page)
        self._close(seq, phase)

    def seal(self, seq: Seq, index: int, page: Page) -> None:
        """The page at this place of a seq's table is full, and found from now on by its tokens."""
        self.pool.seal(page.id)
        if self.scrubber is not None:
            self.scrubber.seal(page.id)
        if keys := self._keys(seq, index + 1):
            self.prefix.insert(keys[index], page)

    def _condemn_early(self, page: Page) -> None:
        """A page is sealed that isn't full yet: whoever finds it would read what is no KV."""
        self.prefix.condemn(page.id)
        if self.scrubber is not None:
            self.scrubber.on_fault(page.id, "it was sealed before it was full")

    def _close(self, seq: Seq, phase: Phase) -> None:
        self._let_go_of_copied(seq)
        self._close_domains(seq)
        self._num_open -= 1
        seq.leave(phase)

    def _let_go_of_copied(self, seq: Seq) -> None:
        if seq.copied is not None and self._owns(seq, seq.num_shared_pages, seq.copied):
            self.prefix.release(seq.copied)
        seq.copied = None

    def _cached(self, seq: Seq) -> list[Page]:
        """The leading pages of the seq that are cached, and still hold what was sealed."""
        if seq.is_retry:  # a cold start: whatever failed may have come from the cache
            return []
        found = self.prefix.match(self._keys(seq, len(seq.tokens) // self.page_size))
        if self.scrubber is None:
            return found
        for index, page in enumerate(found):
            if not self.scrubber.vet(page.id):
                self.prefix.condemn(page.id)
                return found[:index]
        return found

    def _fits(self, seq: Seq, found: list[Page], num_shared: int) -> bool:
        """Whether its tokens fit beside the pages found, of which it shares the first ones."""
        need = self.num_pages(len(seq.tokens) + 1) - num_shared
        room = self.pool.num_free + self.num_coming - self.prefix.num_unheld(found)
        return need + self._num_open <= room

    def _free_one(self) -> bool:
        """Make sure that a page is free. False: all are held, or not yet out of a step's reach."""
        while self.pool.num_free == 0:
            self.pool.recycle()
            if self.pool.num_free == 0 and not self.prefix.evict_one():
                return False
        return True

    def _open_domains(self, seq: Seq) -> bool:
        """Find slots for whom the seq's pages belong to: before its pages, which hold slots too."""
        opened: list[str] = []
        for domain in self._domains(seq):
            if not self._find_slot(domain):
                for other in opened:
                    self.pool.domains.close(other)
                return False
            opened.append(domain)
            self.pool.domains.open(domain)
        slots = self.pool.domains.slots
        seq.domain_slot = slots[seq.request.domain]
        seq.public_slot = slots[PUBLIC_DOMAIN] if seq.num_public_pages else 0
        return True

    def _close_domains(self, seq: Seq) -> None:
        for domain in self._domains(seq):
            self.pool.domains.close(domain)
        seq.domain_slot = seq.public_slot = 0

    def _find_slot(self, domain: str) -> bool:
        domains = self.pool.domains
        while not domains.can_open(domain) and self.prefix.evict_one():
            self.pool.recycle()
        return domains.can_open(domain)

    def _owns(self, seq: Seq, index: int, page: Page) -> bool:
        return self.pool.holds(page) and tags.domain_slot(page.tag) == seq.slot_of(index)

    def _domain(self, seq: Seq, index: int) -> str:
        """Whose the page at this place of the table is."""
        return PUBLIC_DOMAIN if index < seq.num_public_pages else seq.request.domain

    def _domains(self, seq: Seq) -> list[str]:
        return [seq.request.domain, *([PUBLIC_DOMAIN] if seq.num_public_pages else [])]

    def _keys(self, seq: Seq, num_pages: int) -> list[bytes]:
        """Content keys of the seq's first pages, computed once each; none without sharing."""
        if self._scope_of is None:
            return []
        keys, size = seq.page_keys, self.page_size
        while len(keys) < num_pages:
            tokens = seq.tokens[len(keys) * size : (len(keys) + 1) * size]
            parent = keys[-1] if keys else ROOT
            scope = self._scope_of(self._domain(seq, len(keys)))
            keys.append(content_key(scope, parent, tokens))
        return keys[:num_pages]
