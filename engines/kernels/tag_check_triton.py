"""The tag check for CUDA: what `tag_check` says, in one kernel for the pages and one for the slots.

Told the same arrays, on a GPU. Import it only where there is one: it needs triton, which comes with
torch's CUDA build. Its kernels are queued on the current stream, behind whatever filled the arrays.

Division rounds towards zero on a GPU and down elsewhere. Nothing here is divided before it is known
not to be negative.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PAGES_AT_ONCE = 256  # columns of a row that one program looks at
TOKENS_AT_ONCE = 128


def faulty_pages(
    tags: Tensor,
    block_tables: Tensor,
    expected_tags: Tensor,
    row_domains: Tensor,
    num_pages: Tensor,
) -> Tensor:
    """As `tag_check.faulty_pages`."""
    num_rows, max_pages = block_tables.shape
    faulty = torch.empty((num_rows, max_pages), dtype=torch.uint8, device=tags.device)
    if faulty.numel() > 0:
        _pages_kernel[(num_rows, triton.cdiv(max_pages, PAGES_AT_ONCE))](
            tags.contiguous(),
            len(tags),
            block_tables.contiguous(),
            expected_tags.contiguous(),
            row_domains.contiguous(),
            num_pages.contiguous(),
            faulty,
            max_pages,
            PAGES_AT_ONCE,
        )
    return faulty.view(torch.bool)


def faulty_slots(  # noqa: PLR0913 - as its twin
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
    """As `tag_check.faulty_slots`."""
    num_rows, max_pages = expected_tags.shape
    num_tokens = len(slot_mapping)
    faulty = torch.empty(num_tokens, dtype=torch.uint8, device=tags.device)
    if num_tokens > 0:
        _slots_kernel[(triton.cdiv(num_tokens, TOKENS_AT_ONCE),)](
            tags.contiguous(),
            states.contiguous(),
            refs.contiguous(),
            owners.contiguous(),
            len(tags),
            slot_mapping.contiguous(),
            token_rows.contiguous(),
            positions.contiguous(),
            num_tokens,
            expected_tags.contiguous(),
            row_domains.contiguous(),
            row_owners.contiguous(),
            num_rows,
            max_pages,
            faulty,
            page_size,
            active_state,
            TOKENS_AT_ONCE,
        )
    return faulty.view(torch.bool)


@triton.jit
def _pages_kernel(  # noqa: PLR0913 - as its caller
    tags,
    num_tags,
    block_tables,
    expected_tags,
    row_domains,
    num_pages,
    faulty,
    max_pages,
    at_once: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * at_once + tl.arange(0, at_once)
    is_column = columns < max_pages
    is_read = is_column & (columns < tl.load(num_pages + row))
    places = row * max_pages + columns
    pages = tl.load(block_tables + places, mask=is_read, other=0)
    expected = tl.load(expected_tags + places, mask=is_read, other=0)
    domain = tl.load(row_domains + row)
    inside = (pages > 0) & (pages < num_tags)
    found = tl.load(tags + tl.where(inside, pages, 0), mask=inside, other=0)
    right = inside & (found == expected) & (((found >> 48) & 0xFFFF) == domain)
    tl.store(faulty + places, (is_read & ~right).to(tl.uint8), mask=is_column)


@triton.jit
def _slots_kernel(  # noqa: PLR0913 - as its caller
    tags,
    states,
    refs,
    owners,
    num_tags,
    slot_mapping,
    token_rows,
    positions,
    num_tokens,
    expected_tags,
    row_domains,
    row_owners,
    num_rows,
    max_pages,
    faulty,
    page_size,
    active_state,
    at_once: tl.constexpr,
):
    tokens = tl.program_id(0).to(tl.int64) * at_once + tl.arange(0, at_once)
    is_token = tokens < num_tokens
    slots = tl.load(slot_mapping + tokens, mask=is_token, other=-1)
    rows = tl.load(token_rows + tokens, mask=is_token, other=-1)
    position = tl.load(positions + tokens, mask=is_token, other=-1)
    columns = tl.where(position >= 0, position, 0) // page_size
    pages = tl.where(slots >= 0, slots, 0) // page_size
    right = (rows >= 0) & (rows < num_rows) & (position >= 0) & (columns < max_pages)
    right = right & (pages > 0) & (pages < num_tags)
    rows = tl.where(right, rows, 0)
    columns = tl.where(right, columns, 0)
    pages = tl.where(right, pages, 0)
    found = tl.load(tags + pages, mask=right, other=0)
    expected = tl.load(expected_tags + rows * max_pages + columns, mask=right, other=0)
    domain = tl.load(row_domains + rows, mask=right, other=0)
    owner = tl.load(row_owners + rows, mask=right, other=0)
    is_rows = (found == expected) & (((found >> 48) & 0xFFFF) == domain)
    is_rows = is_rows & (tl.load(owners + pages, mask=right, other=0) == owner)
    is_writable = tl.load(states + pages, mask=right, other=0) == active_state
    is_writable = is_writable & (tl.load(refs + pages, mask=right, other=0) == 1)
    fine = right & is_rows & is_writable
    tl.store(faulty + tokens, (~fine).to(tl.uint8), mask=is_token)
