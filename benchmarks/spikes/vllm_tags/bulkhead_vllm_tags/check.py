"""Whether the table that attention is about to read names what its requests were given.

Arrays in, row numbers out; no vLLM in here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bulkhead_vllm_tags.ledger import GENERATION_BITS, NULL_BLOCK, Tags

SHIFT = np.uint64(GENERATION_BITS)


def broken_rows(
    tags: Tags,
    table: NDArray[np.int32],
    num_blocks: NDArray[np.int64],
    given: Sequence[Tags],
    slots: Sequence[int],
) -> list[int]:
    """Rows that would read a block that isn't theirs.

    `table` [rows, most blocks] is attention's own, of which it reads `num_blocks` places a row.
    `given` and `slots` are of the same rows: the tags they were given, and their domains.
    """
    if not len(given):
        return []
    is_read = np.arange(table.shape[1]) < num_blocks[:, None]
    blocks = table[is_read]
    inside = (blocks > NULL_BLOCK) & (blocks < len(tags))
    found = tags[np.where(inside, blocks, NULL_BLOCK)]
    numbers = zip(given, num_blocks.tolist(), strict=True)
    recorded = np.concatenate([_first(row, number) for row, number in numbers])
    domains = np.repeat(np.asarray(slots, np.uint64), num_blocks)
    wrong = ~inside | (found != recorded) | (found >> SHIFT != domains)
    if not wrong.any():
        return []
    rows = np.repeat(np.arange(len(given)), num_blocks)
    return [int(row) for row in np.unique(rows[wrong])]


def astray_rows(
    table: NDArray[np.int32],
    lengths: NDArray[np.int64],
    starts: NDArray[np.int64],
    slots: NDArray[np.int64],
    block_size: int,
) -> list[int]:
    """Rows whose new tokens would be written elsewhere than where their table says.

    `lengths` [rows] is in tokens, new ones included; `starts` [rows + 1] says which of `slots` are
    which row's. A slot is block * block_size + place.
    """
    counts = np.diff(starts)
    rows = np.repeat(np.arange(len(counts)), counts)
    places = np.arange(len(rows)) - np.repeat(starts[1:] - lengths, counts)
    blocks = table[rows, places // block_size]
    wrong = slots[: len(rows)] != blocks.astype(np.int64) * block_size + places % block_size
    return [int(row) for row in np.unique(rows[wrong])] if wrong.any() else []


def _first(given: Tags, number: int) -> Tags:
    """So many tags; 0, which no block has, for those that were never given."""
    missing = number - len(given)
    return given[:number] if missing <= 0 else np.append(given, np.zeros(missing, np.uint64))
