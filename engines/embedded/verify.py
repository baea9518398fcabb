"""The check of every page of every row, against the pool's own tags.

Told a batch and the pool. `before` runs ahead of the forward pass, over the very block tables that
attention will read, and guards the slots to be written; `after` runs before any token leaves. The
comparisons themselves are kernels; here they are fed, counted, and put into words. Whether all is
right, one native call says where there is one; what is wrong, which is rare, is found in numpy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engines.api import EngineFailed
from engines.embedded import tags
from engines.embedded.batch import Batch, Ints
from engines.embedded.pages import NULL_PAGE, PagePool, State
from engines.embedded.seq import Chunk
from engines.kernels import native
from engines.kernels.tag_check_host import Bools, faulty_pages, faulty_slots

NONE = np.zeros((0, 1), np.bool_)  # nothing at fault
# Told whether writes are guarded, too: how many pages were compared, and whether all is right.
Look = Callable[[Batch, bool], tuple[int, bool]]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One page that wasn't what its row had been given, as it was when that was noticed."""

    chunk: Chunk
    row: int
    phase: str  # "before" or "after" the forward pass
    kind: str  # "stale", "domain", "null", "quarantined", or "slot": not the row's to write
    page: int
    expected: int
    found: int
    state: str
    refs: int
    pins: int


@dataclass(slots=True)
class Checked:
    """How much one of the two checks has done."""

    pages: int = 0
    seconds: float = 0.0


class Verifier:
    """`mode`: "enforce" stops rows at fault, "observe" only reports them, "off" doesn't look."""

    def __init__(self, pool: PagePool, page_size: int, mode: str) -> None:
        self.mode = mode
        self.by_phase = {"before": Checked(), "after": Checked()}  # two threads, one each
        self._pool = pool
        self._page_size = page_size
        self._tags = pool.tags.view(np.int64)  # the pool's own memory
        self._look = self._native_look() if native.IS_BUILT else self._look_in_numpy

    @property
    def pages_checked(self) -> int:
        """Since the start, both checks together."""
        return sum(checked.pages for checked in self.by_phase.values())

    def screen(self, batch: Batch) -> tuple[Batch, list[Mismatch], int]:
        """The batch without the rows that must not run, why, and of how many pages of it that is
        known: what is left has been checked as it is.
        """
        found: list[Mismatch] = []
        while True:
            before = self.num_checked("before")
            mismatches = self.before(batch)
            num_checked = self.num_checked("before") - before
            found += mismatches
            if not mismatches or self.mode != "enforce":
                return batch, found, num_checked
            # Arrays of its own, so checked anew: the check must have seen the tables that are read.
            batch = batch.without(sorted({mismatch.row for mismatch in mismatches}))

    def before(self, batch: Batch) -> list[Mismatch]:
        """What the rows must not read or write."""
        return self._check(batch, "before") if self.mode != "off" else []

    def after(self, batch: Batch) -> list[Mismatch]:
        """What the rows turn out to have read wrongly, told before a token leaves."""
        return self._check(batch, "after") if self.mode != "off" else []

    def _check(self, batch: Batch, phase: str) -> list[Mismatch]:
        began = time.perf_counter()
        with self._pool.lock:  # nobody retags a page meanwhile
            num_read, is_right = self._look(batch, phase == "before")
            found = [] if is_right else self._told(batch, phase)
        checked = self.by_phase[phase]
        checked.pages += num_read
        checked.seconds += time.perf_counter() - began
        return found

    def assert_covered(self, batch: Batch, before: int, after: int) -> None:
        """Raises EngineFailed unless both checks of a step saw as many pages as it reads.

        Counted from the chunks, not from the arrays that the checks were given: a check that checks
        too little, or that somebody has switched off, mustn't look green.
        """
        if self.mode == "off":
            return
        owed, page_size = 0, self._page_size
        for chunk in batch.chunks:
            owed += -(-chunk.context_len // page_size) + (chunk.source is not None)
        if min(before, after) < owed:
            raise EngineFailed(
                f"the tag check covered {min(before, after)} pages instead of {owed}"
            )

    def num_checked(self, phase: str) -> int:
        """Pages that one of the checks has looked at since the start."""
        return self.by_phase[phase].pages

    def _native_look(self) -> Look:
        pool, active = self._pool, int(State.ACTIVE)
        check = native.module.PageCheck(
            pool.tags, pool.states, pool.refs, pool.owners, self._page_size, active
        )
        return lambda batch, guards_writes: check.look(batch.view, guards_writes)

    def _look_in_numpy(self, batch: Batch, guards_writes: bool) -> tuple[int, bool]:
        """The native look's twin, for where it isn't built."""
        faulty = [self._faulty_pages(batch), self._faulty_copies(batch)]
        if guards_writes:
            faulty.append(self._faulty_slots(batch))
        num_read = _num_read(batch) + len(batch.copy_sources)
        return num_read, not any(map(np.count_nonzero, faulty))

    def _faulty_pages(self, batch: Batch) -> Bools:
        own = self._faulty_pages_of(batch, batch.row_domains, batch.num_pages)
        if not np.count_nonzero(batch.num_public):
            return own
        num_public = np.minimum(batch.num_public, batch.num_pages)
        public = self._faulty_pages_of(batch, batch.public_domains, num_public)
        is_public = np.arange(own.shape[1]) < num_public[:, None]
        return np.where(is_public, public, own)

    def _faulty_pages_of(self, batch: Batch, domains: Ints, num_pages: Ints) -> Bools:
        return faulty_pages(
            self._tags,
            batch.block_tables,
            batch.expected_tags.view(np.int64),
            domains,
            num_pages,
        )

    def _faulty_copies(self, batch: Batch) -> Bools:
        """[copies, 1]: each copied page is like the only page of a row."""
        if len(batch.copy_rows) == 0:
            return NONE
        return faulty_pages(
            self._tags,
            batch.copy_sources[:, None],
            batch.copy_tags.view(np.int64)[:, None],
            batch.copy_domains,
            np.ones(len(batch.copy_rows), np.int64),
        )

    def _faulty_slots(self, batch: Batch) -> Bools:
        rows, domains, owners = batch.token_rows, batch.row_domains, batch.row_owners
        expected = batch.expected_tags.view(np.int64)
        if np.count_nonzero(
            batch.num_public
        ):  # the public part of a row is checked like a row of its own
            is_public = batch.positions // self._page_size < batch.num_public[rows]
            rows = rows + len(batch.chunks) * is_public
            domains = np.concatenate([domains, batch.public_domains])
            owners, expected = np.tile(owners, 2), np.tile(expected, (2, 1))
        return faulty_slots(
            self._tags,
            self._pool.states,
            self._pool.refs,
            self._pool.owners,
            batch.slot_mapping,
            rows,
            batch.positions,
            expected,
            domains,
            owners,
            self._page_size,
            int(State.ACTIVE),
        )

    def _told(self, batch: Batch, phase: str) -> list[Mismatch]:
        """The rare part: every fault in words. A row's slots count only if its pages are right."""
        by_page, by_copy = self._faulty_pages(batch), self._faulty_copies(batch)
        by_slot = self._faulty_slots(batch) if phase == "before" else NONE
        found = []
        for row, column in np.argwhere(by_page).tolist():
            page, expected = batch.block_tables[row, column], batch.expected_tags[row, column]
            found.append(self._mismatch(batch, row, phase, int(page), int(expected)))
        for copy, _ in np.argwhere(by_copy).tolist():
            page, expected = batch.copy_sources[copy], batch.copy_tags[copy]
            row = int(batch.copy_rows[copy])
            found.append(self._mismatch(batch, row, phase, int(page), int(expected)))
        at_fault = {mismatch.row for mismatch in found}
        for token in np.flatnonzero(by_slot).tolist():
            row = int(batch.token_rows[token])
            if row not in at_fault:
                at_fault.add(row)
                page = int(batch.slot_mapping[token]) // self._page_size
                column = int(batch.positions[token]) // self._page_size
                expected = int(batch.expected_tags[row, column])
                found.append(self._mismatch(batch, row, phase, page, expected, "slot"))
        if not found:
            raise EngineFailed("the native tag check found a fault that nobody can name")
        return found

    def _mismatch(
        self, batch: Batch, row: int, phase: str, page: int, expected: int, kind: str = ""
    ) -> Mismatch:
        pool = self._pool
        inside = 0 <= page < pool.num_pages
        at = page if inside else NULL_PAGE
        found = int(pool.tags[at])
        own = {int(batch.row_domains[row]), int(batch.public_domains[row])}
        return Mismatch(
            chunk=batch.chunks[row],
            row=row,
            phase=phase,
            kind=kind or kind_of(page, found, own, pool.num_pages),
            page=page,
            expected=expected,
            found=found,
            state=State(pool.states[at]).name if inside else "OUTSIDE",
            refs=int(pool.refs[at]),
            pins=int(pool.pins[at]),
        )


def _num_read(batch: Batch) -> int:
    """Places of the tables that the rows read, and that were compared."""
    return int(np.maximum(np.minimum(batch.num_pages, batch.block_tables.shape[1]), 0).sum())


def kind_of(page: int, found: int, own_slots: set[int], num_pages: int) -> str:
    """What a wrong page is to the row that names it. A page of another domain is the worst."""
    if not NULL_PAGE < page < num_pages:
        return "null"
    slot = tags.domain_slot(found)
    if slot == tags.QUARANTINE_SLOT:
        return "quarantined"
    return "stale" if slot in own_slots | {tags.SYSTEM_SLOT} else "domain"
