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

from engines.kernels.tag_check_host import DOMAIN_MASK, FIRST_PAGE, GENERATION_BITS


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
    # Differences are or-ed, not compared one by one: for long tables a sixth faster on a CPU.
    inside = block_tables.clamp(FIRST_PAGE, len(tags) - 1)
    found = tags.index_select(0, inside.reshape(-1)).view(block_tables.shape)
    differences = found ^ expected_tags
    differences |= inside.bitwise_xor_(block_tables)
    differences |= _domains_of_(found).bitwise_xor_(row_domains.unsqueeze(1))
    return differences.bool().bitwise_and_(is_read)


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
    rows = token_rows.clamp(0, num_rows - 1)
    columns = positions // page_size
    own = columns.clamp(0, max_pages - 1)
    expected = expected_tags.reshape(-1).index_select(0, torch.add(own, rows, alpha=max_pages))
    pages = slot_mapping // page_size
    inside = pages.clamp(FIRST_PAGE, len(tags) - 1)
    found = tags.index_select(0, inside)
    faulty = (rows != token_rows).bitwise_or_(own != columns).bitwise_or_(inside != pages)
    faulty |= found != expected
    faulty |= _domains_of_(found) != row_domains.index_select(0, rows)
    faulty |= states.index_select(0, inside) != active_state
    faulty |= refs.index_select(0, inside) != 1
    faulty |= owners.index_select(0, inside) != row_owners.index_select(0, rows)
    return faulty


def _domains_of_(tags: Tensor) -> Tensor:
    """The tags' domains, in the tags' own memory."""
    return tags.bitwise_right_shift_(GENERATION_BITS).bitwise_and_(DOMAIN_MASK)
