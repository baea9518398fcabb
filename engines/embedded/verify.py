"""The check of every page of every row, against the pool's own tags.

Told a batch and the pool. `before` runs ahead of the forward pass, over the very block tables that
attention will read, and guards the slots to be written; `after` runs before any token leaves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engines.api import EngineFailed
from engines.embedded import tags
from engines.embedded.batch import Batch, Ints
from engines.embedded.pages import NULL_PAGE, PagePool, State

Flags = NDArray[np.bool_]
_GENERATION_BITS = np.uint64(tags.GENERATION_BITS)


class Verifier:
    """`mode`: "enforce" reports rows at fault, "observe" only counts them, "off" doesn't look."""

    def __init__(self, pool: PagePool, page_size: int, mode: str) -> None:
        self.pages_checked = 0
        self.mismatches = 0  # pages, and rows whose slots alone were wrong
        self._pool = pool
        self._page_size = page_size
        self._mode = mode

    def before(self, batch: Batch) -> list[int]:
        """Rows that must not run. Raises EngineFailed if a page escaped the check."""
        if self._mode == "off":
            return []
        by_page = self._faulty_pages(batch)
        by_slot = self._rows_with_faulty_slots(batch)
        faulty: Flags = np.any(by_page, axis=1)
        self.mismatches += int(by_page.sum()) + int((by_slot & ~faulty).sum())
        return self._verdict(faulty | by_slot)

    def after(self, batch: Batch) -> list[int]:
        """Rows whose token must not leave. Raises EngineFailed if a page escaped the check."""
        if self._mode == "off":
            return []
        by_page = self._faulty_pages(batch)
        self.mismatches += int(by_page.sum())
        return self._verdict(np.any(by_page, axis=1))

    def _verdict(self, faulty_rows: Flags) -> list[int]:
        if self._mode == "observe":
            return []
        rows: list[int] = np.flatnonzero(faulty_rows).tolist()
        return rows

    def _faulty_pages(self, batch: Batch) -> Flags:
        """[rows, max_pages]: True where a page that the row reads isn't the one it was given."""
        live = np.arange(batch.block_tables.shape[1]) < batch.num_pages[:, None]
        self._count(batch, int(live.sum()))
        right = self._is_expected(
            batch.block_tables, batch.expected_tags, batch.row_domains[:, None]
        )
        return live & ~right

    def _rows_with_faulty_slots(self, batch: Batch) -> Flags:
        """[rows]: True where a slot to be written isn't in an active page of the row alone."""
        pages = batch.slot_mapping // self._page_size
        expected = batch.expected_tags[batch.token_rows, batch.positions // self._page_size]
        right = self._is_expected(pages, expected, batch.row_domains[batch.token_rows])
        inside = np.where(self._is_inside(pages), pages, NULL_PAGE)
        right &= (self._pool.states[inside] == State.ACTIVE) & (self._pool.refs[inside] == 1)
        faulty = np.zeros(len(batch.chunks), np.bool_)
        faulty[batch.token_rows[~right]] = True
        return faulty

    def _is_expected(
        self, pages: Ints, expected: NDArray[np.uint64], domains: NDArray[np.uint64]
    ) -> Flags:
        inside = self._is_inside(pages)
        found = self._pool.tags[np.where(inside, pages, NULL_PAGE)]
        right: Flags = inside & (found == expected) & (found >> _GENERATION_BITS == domains)
        return right

    def _is_inside(self, pages: Ints) -> Flags:
        return (pages > NULL_PAGE) & (pages < self._pool.num_pages)

    def _count(self, batch: Batch, num_checked: int) -> None:
        # From the chunks, not from the arrays: a check that checks too little must not look green.
        owed = sum(-(-chunk.context_len // self._page_size) for chunk in batch.chunks)
        if num_checked != owed:
            raise EngineFailed(f"the tag check covered {num_checked} pages instead of {owed}")
        self.pages_checked += num_checked
