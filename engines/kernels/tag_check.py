"""The tag check over a whole step: which pages and slots aren't the ones that a row was given.

Told the arrays that attention consumes and the pool's own; runs where they are, and waits for
nothing. Every id is an int64, and so is every tag: `domain:16 | generation:48`, its bits as they
are, so that a domain above 32767 makes a tag negative.

An id is never an index before it is known to lie in the pool. Nor does any value decide what runs:
the same few operations for each step, whatever the tables say.
"""

from __future__ import annotations

import torch
from torch import Tensor

GENERATION_BITS = 48
DOMAIN_MASK = 0xFFFF
FIRST_PAGE = 1  # page 0 is the null page, which is never read and never written


def faulty_pages(
    tags: Tensor,
    block_tables: Tensor,
    expected_tags: Tensor,
    row_domains: Tensor,
    num_pages: Tensor,
) -> Tensor:
    """bool [rows, max_pages]: True where a page that the row reads isn't the one it was given.

    `tags` [pool pages] are the pool's; `block_tables` and `expected_tags` [rows, max_pages], and of
    each row its first `num_pages` [rows] columns are read; `row_domains` [rows].
    """
    is_read = torch.arange(block_tables.shape[1], device=tags.device) < num_pages.unsqueeze(1)
    if len(tags) <= FIRST_PAGE:
        return is_read
    inside = _moved_inside(block_tables, FIRST_PAGE, len(tags))
    faulty = _differences(tags, block_tables, inside, expected_tags, row_domains.unsqueeze(1))
    return faulty.bool().bitwise_and_(is_read)


def count_pages(num_pages: Tensor, max_pages: int) -> Tensor:
    """int64 []: how many pages `faulty_pages` looks at, for tables of `max_pages` columns."""
    return num_pages.clamp(0, max_pages).sum()


def faulty_slots(  # noqa: PLR0913 - the arrays of the pool, of the tokens and of the rows
    tags: Tensor,
    states: Tensor,
    refs: Tensor,
    owners: Tensor,
    slot_mapping: Tensor,
    token_rows: Tensor,
    positions: Tensor,
    expected_tags: Tensor,
    row_domains: Tensor,
    row_owners: Tensor,
    page_size: int,
    active_state: int,
) -> Tensor:
    """bool [tokens]: True where a token would be written to a page that isn't its row's to write.

    Its row's means: of state `active_state`, held once, by the row's owner, and with the tag that
    the row expects of the page of that position. `tags`, `states` (uint8), `refs` (int32) and
    `owners` are the pool's; `slot_mapping` (page * page_size + offset), `token_rows` and
    `positions` have one number a token; `expected_tags` [rows, max_pages]; the rest one a row.
    """
    num_rows, max_pages = expected_tags.shape
    if len(tags) <= FIRST_PAGE or expected_tags.numel() == 0:
        return torch.ones_like(slot_mapping, dtype=torch.bool)
    rows = _moved_inside(token_rows, 0, num_rows)
    columns = positions // page_size
    columns_inside = _moved_inside(columns, 0, max_pages)
    expected = expected_tags.reshape(-1).index_select(0, rows * max_pages + columns_inside)
    pages = slot_mapping // page_size
    inside = _moved_inside(pages, FIRST_PAGE, len(tags))
    faulty = _differences(tags, pages, inside, expected, row_domains.index_select(0, rows))
    faulty |= owners.index_select(0, inside).bitwise_xor_(row_owners.index_select(0, rows))
    faulty |= states.index_select(0, inside).bitwise_xor_(active_state)
    faulty |= refs.index_select(0, inside).bitwise_xor_(1)
    faulty |= (rows ^ token_rows).bitwise_or_(columns_inside ^ columns)
    return faulty.bool()


def _moved_inside(ids: Tensor, first: int, end: int) -> Tensor:
    """The ids, those outside of [first, end) moved to its nearer edge: fit to be an index."""
    return ids.clamp(first, end - 1)


def _differences(
    tags: Tensor, pages: Tensor, inside: Tensor, expected: Tensor, domains: Tensor
) -> Tensor:
    """int64, like `pages`: 0 where the page lies inside, has this tag, and is of this domain.

    Differences are or-ed and not compared: twice as fast on a CPU as one bool for each of them.
    """
    found = tags.index_select(0, inside.reshape(-1)).view(pages.shape)
    differences = found ^ expected
    differences |= inside ^ pages
    found.bitwise_right_shift_(GENERATION_BITS).bitwise_and_(DOMAIN_MASK)
    differences |= found.bitwise_xor_(domains)
    return differences
