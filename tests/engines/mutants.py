"""Our own code with one thing wrong: each mutant replaces one function of a live engine.

What a mutant needs to show itself, if the layers before it hold, is planted by its scenario.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engines.embedded import verify
from engines.embedded.batch import Batch, Ints
from engines.embedded.door import Door
from engines.embedded.engine import EmbeddedEngine
from engines.embedded.pages import PagePool, State
from engines.embedded.prefix import PrefixCache
from engines.embedded.scheduler import Scheduler
from engines.embedded.seq import Chunk, Page, Seq
from engines.embedded.tables import Tables
from engines.embedded.verify import Mismatch, Verifier

Patch = pytest.MonkeyPatch
Mutant = Callable[[EmbeddedEngine, Patch], None]


# Fences


def no_step_fence(engine: EmbeddedEngine, patch: Patch) -> None:
    """A page is reused although a step may still touch it."""
    patch.setattr(PagePool, "is_untouched", lambda pool, page: bool(pool.pins[page] == 0))


def no_transfer_fence(engine: EmbeddedEngine, patch: Patch) -> None:
    """A page is reused although another process may still write it."""

    def is_untouched(pool: PagePool, page: int) -> bool:
        return bool(pool.last_steps[page] <= pool.completed_step)

    patch.setattr(PagePool, "is_untouched", is_untouched)


def notice_counts_as_drained(engine: EmbeddedEngine, patch: Patch) -> None:
    """That a load is given up is taken for proof that its writer has ended: free while pinned."""
    patch.setattr(Door, "abandon", Door.drained)


# The pool and who holds its pages


def evicts_held_pages(engine: EmbeddedEngine, patch: Patch) -> None:
    """A page that is taken from the cache stays in the list of those that nobody holds."""

    def take(prefix: PrefixCache, pages: Sequence[Page]) -> None:
        for page in pages:
            prefix._pool.share(page.id)

    patch.setattr(PrefixCache, "take", take)


def evicts_held_pages_unasserted(engine: EmbeddedEngine, patch: Patch) -> None:
    """The same, and the pool doesn't mind."""
    evicts_held_pages(engine, patch)
    evict = PagePool.evict

    def forced(pool: PagePool, page: int) -> None:
        pool.refs[page], pool.states[page] = 0, State.CACHED
        evict(pool, page)

    patch.setattr(PagePool, "evict", forced)


def releases_twice(engine: EmbeddedEngine, patch: Patch) -> None:
    """One who leaves a shared page counts for two."""
    release = PagePool.release

    def twice(pool: PagePool, page: int, *, keep: bool = False) -> None:
        if pool.refs[page] > 1:
            pool.refs[page] -= 1
        release(pool, page, keep=keep)

    patch.setattr(PagePool, "release", twice)


def keeps_the_tag_of_a_freed_page(engine: EmbeddedEngine, patch: Patch) -> None:
    """It changes when the page is allocated, and not before."""

    def retire(pool: PagePool, page: int) -> None:
        pool._move(page, State.RETIRING)
        pool.owners[page] = 0
        pool._retiring.append(page)

    patch.setattr(PagePool, "_retire", retire)


def counts_no_generations(engine: EmbeddedEngine, patch: Patch) -> None:
    """All pages of a domain have one tag."""
    retag = PagePool._retag

    def same(pool: PagePool, page: int, domain_slot: int) -> None:
        pool._generation = 7
        retag(pool, page, domain_slot)

    patch.setattr(PagePool, "_retag", same)


def does_not_wipe(engine: EmbeddedEngine, patch: Patch) -> None:
    """Freed pages keep their bytes."""
    patch.setattr(engine.pool, "wipe", lambda pages: None)


# The cache


def leaves_the_domain_out_of_the_key(engine: EmbeddedEngine, patch: Patch) -> None:
    """Equal prompts have equal keys, whoever sent them."""
    scope_of = engine.tables._scope_of
    assert scope_of is not None
    patch.setattr(engine.tables, "_scope_of", lambda domain: replace(scope_of(domain), domain=""))


def keeps_entries_of_evicted_pages(engine: EmbeddedEngine, patch: Patch) -> None:
    """The index still names them."""

    def evict(prefix: PrefixCache, page: int) -> None:
        prefix._evictable.discard(page)
        prefix._pool.evict(page)

    patch.setattr(PrefixCache, "_evict", evict)


def reads_the_tag_at_share(engine: EmbeddedEngine, patch: Patch) -> None:
    """The same, and a match has whatever tag its page has by now."""
    keeps_entries_of_evicted_pages(engine, patch)

    def match(prefix: PrefixCache, keys: Sequence[bytes]) -> list[Page]:
        found = [prefix._pages[key] for key in keys if key in prefix._pages]
        return [Page(page.id, int(prefix._pool.tags[page.id])) for page in found]

    patch.setattr(PrefixCache, "match", match)


def compares_no_domain_anywhere(engine: EmbeddedEngine, patch: Patch) -> None:
    """Neither the key nor the check knows whose a page is."""
    leaves_the_domain_out_of_the_key(engine, patch)
    compares_no_domains(engine, patch)


def does_not_copy_on_write(engine: EmbeddedEngine, patch: Patch) -> None:
    """A prompt whose last page is cached goes on writing to that page."""
    admit = Tables.admit

    def shares_all(tables: Tables, seq: Seq) -> bool:
        admitted = admit(tables, seq)
        if seq.copied is not None:
            seq.hold(seq.copied)
            seq.num_shared_pages = seq.num_sealed_pages = len(seq.block_table)
            seq.copied = None
        return admitted

    patch.setattr(Tables, "admit", shares_all)


def seals_at_launch(engine: EmbeddedEngine, patch: Patch) -> None:
    """A page counts as computed once its step was laid out."""
    schedule = Scheduler.schedule

    def too_soon(scheduler: Scheduler) -> list[Chunk]:
        chunks = schedule(scheduler)
        for chunk in chunks:
            scheduler._tables.computed(chunk, chunk.context_len)
        return chunks

    patch.setattr(Scheduler, "schedule", too_soon)


def does_not_ask_who_is_live(engine: EmbeddedEngine, patch: Patch) -> None:
    """What a step yields for a request that has ended or given way counts all the same."""
    patch.setattr(Chunk, "is_live", True)


# The check. Its native look has no seams, so where a part of it is changed it is numpy that looks.


def _in_numpy(engine: EmbeddedEngine, patch: Patch) -> None:
    patch.setattr(engine.verifier, "_look", engine.verifier._look_in_numpy)


def skips_prefix_pages(engine: EmbeddedEngine, patch: Patch) -> None:
    """Pages that came from the cache are taken to be right."""
    faulty_pages = Verifier._faulty_pages

    def own_only(verifier: Verifier, batch: Batch) -> Any:
        faulty = faulty_pages(verifier, batch)
        for row, chunk in enumerate(batch.chunks):
            faulty[row, : chunk.seq.num_shared_pages] = False
        return faulty

    _in_numpy(engine, patch)
    patch.setattr(Verifier, "_faulty_pages", own_only)


def compares_no_domains(engine: EmbeddedEngine, patch: Patch) -> None:
    """A page with the tag that the row expects is right, whosever it is."""

    def generations(
        tags: Ints, tables: Ints, expected: Ints, domains: Ints, num_pages: Ints
    ) -> Any:
        is_read = np.arange(tables.shape[1]) < num_pages[:, None]
        return (tags[tables] != expected) & is_read

    _in_numpy(engine, patch)
    patch.setattr(verify, "faulty_pages", generations)


def guards_no_writes(engine: EmbeddedEngine, patch: Patch) -> None:
    """A row may write anywhere."""
    _in_numpy(engine, patch)
    patch.setattr(Verifier, "_faulty_slots", lambda verifier, batch: verify.NONE)


def checks_nothing_after(engine: EmbeddedEngine, patch: Patch) -> None:
    """The check after the forward pass isn't there."""
    patch.setattr(engine.verifier, "after", lambda batch: [])


def tells_nothing_after(engine: EmbeddedEngine, patch: Patch) -> None:
    """The check after the forward pass looks, and finds nothing."""
    after = engine.verifier.after
    patch.setattr(engine.verifier, "after", lambda batch: after(batch) and [])


def blames_the_next_row(engine: EmbeddedEngine, patch: Patch) -> None:
    """The row at fault is told with an index that is off by one."""
    told = Verifier._mismatch

    def other(self: Verifier, batch: Batch, row: int, *fault: Any) -> Mismatch:
        return told(self, batch, (row + 1) % len(batch.chunks), *fault)

    patch.setattr(Verifier, "_mismatch", other)


def checks_nothing(engine: EmbeddedEngine, patch: Patch) -> None:
    """Neither before nor after."""
    patch.setattr(engine.verifier, "before", lambda batch: [])
    patch.setattr(engine.verifier, "after", lambda batch: [])


def checks_nothing_and_does_not_count(engine: EmbeddedEngine, patch: Patch) -> None:
    """Nor does anybody ask how many pages were checked."""
    checks_nothing(engine, patch)
    patch.setattr(engine.verifier, "assert_covered", lambda batch, before, after: None)
