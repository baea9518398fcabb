"""The tag check where the arrays are the host's: the twin of `tag_check` in numpy.

Told the same, as numpy arrays, and says the same. For the few pages of a step on a CPU the work is
calling, not comparing, and a call of numpy costs a quarter of one of torch: after a forward pass,
which leaves nothing else in the caches, both checks of a step take 0.2 ms instead of 0.8.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GENERATION_BITS = 48
DOMAIN_MASK = 0xFFFF
FIRST_PAGE = 1  # page 0 is the null page, which is never read and never written

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def faulty_pages(
    tags: Ints, block_tables: Ints, expected_tags: Ints, row_domains: Ints, num_pages: Ints
) -> Bools:
    """bool [rows, max_pages]: see `tag_check.faulty_pages`."""
    is_read = np.arange(block_tables.shape[1]) < num_pages[:, None]
    if len(tags) <= FIRST_PAGE:
        return is_read
    found = tags.take(block_tables, mode="clip")
    faulty: Bools = found != expected_tags
    faulty |= _is_outside(block_tables, FIRST_PAGE, len(tags))
    faulty |= _domains_of_(found) != row_domains[:, None]
    faulty &= is_read
    return faulty


def faulty_slots(  # noqa: PLR0913 - the arrays of the pool, of the tokens and of the rows
    tags: Ints,
    states: NDArray[np.uint8],
    refs: NDArray[np.int32],
    owners: Ints,
    slot_mapping: Ints,
    token_rows: Ints,
    positions: Ints,
    expected_tags: Ints,
    row_domains: Ints,
    row_owners: Ints,
    page_size: int,
    active_state: int,
) -> Bools:
    """bool [tokens]: see `tag_check.faulty_slots`."""
    num_rows, max_pages = expected_tags.shape
    if len(tags) <= FIRST_PAGE or expected_tags.size == 0:
        return np.ones(len(slot_mapping), np.bool_)
    columns = positions // page_size
    pages = slot_mapping // page_size
    faulty = _is_outside(token_rows, 0, num_rows)
    faulty |= _is_outside(columns, 0, max_pages)
    faulty |= _is_outside(pages, FIRST_PAGE, len(tags))
    # What lies outside is a fault whatever is found in its stead.
    expected = expected_tags.take(token_rows * max_pages + columns, mode="clip")
    found = tags.take(pages, mode="clip")
    faulty |= found != expected
    faulty |= _domains_of_(found) != row_domains.take(token_rows, mode="clip")
    faulty |= states.take(pages, mode="clip") != active_state
    faulty |= refs.take(pages, mode="clip") != 1
    faulty |= owners.take(pages, mode="clip") != row_owners.take(token_rows, mode="clip")
    return faulty


def _is_outside(numbers: Ints, first: int, end: int) -> Bools:
    """Not first..end - 1. Without a sign what lies below the first lies far above the end."""
    return (numbers - first).view(np.uint64) >= end - first


def _domains_of_(tags: Ints) -> Ints:
    """The tags' domains, in the tags' own memory."""
    tags >>= GENERATION_BITS
    tags &= DOMAIN_MASK
    return tags
