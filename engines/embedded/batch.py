"""Chunks of seqs -> the ragged arrays of one step. The one place that knows slots.

Rows of one token come first, so that attention can take them all at once. Everything is numpy; the
runner wraps these very arrays as tensors, so what `verify` checks is what attention reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engines.embedded.seq import Chunk

Ints = NDArray[np.int64]
Tags = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Batch:
    """One row a chunk. Tables are padded with the null page and its tag, both 0."""

    chunks: list[Chunk]
    input_ids: Ints  # [tokens]
    positions: Ints  # [tokens]
    token_rows: Ints  # [tokens] the row that each token belongs to
    slot_mapping: Ints  # [tokens] page * page_size + offset: where its KV is written
    block_tables: Ints  # [rows, max_pages]
    expected_tags: Tags  # [rows, max_pages] as recorded by the seqs
    row_domains: Tags  # [rows] domain slots, from the seqs and not from their tables
    context_lens: Ints  # [rows]
    query_lens: Ints  # [rows]
    num_pages: Ints  # [rows]
    last_tokens: Ints  # [rows] index of each row's last token in the ragged arrays
    num_decodes: int  # leading rows whose query_len is 1


def build(chunks: Sequence[Chunk], page_size: int) -> Batch:
    """Lay out one step. Slots come from the block tables, tags and domains from the seqs."""
    rows = sorted(chunks, key=lambda chunk: chunk.num_tokens > 1)
    query_lens = np.array([chunk.num_tokens for chunk in rows], np.int64)
    context_lens = np.array([chunk.context_len for chunk in rows], np.int64)
    num_pages = -(-context_lens // page_size)
    block_tables, expected_tags = _tables(rows, num_pages)
    ends = np.cumsum(query_lens)
    token_rows = np.repeat(np.arange(len(rows)), query_lens)
    # The last token of a row stands at ends - 1 and has position context_len - 1.
    positions = np.arange(len(token_rows)) - (ends - context_lens)[token_rows]
    pages = block_tables[token_rows, positions // page_size]
    return Batch(
        chunks=rows,
        input_ids=_input_ids(rows),
        positions=positions,
        token_rows=token_rows,
        slot_mapping=pages * page_size + positions % page_size,
        block_tables=block_tables,
        expected_tags=expected_tags,
        row_domains=np.array([chunk.seq.domain_slot for chunk in rows], np.uint64),
        context_lens=context_lens,
        query_lens=query_lens,
        num_pages=num_pages,
        last_tokens=ends - 1,
        num_decodes=int((query_lens == 1).sum()),
    )


def _tables(rows: Sequence[Chunk], num_pages: Ints) -> tuple[Ints, Tags]:
    shape = (len(rows), int(num_pages.max(initial=0)))
    block_tables = np.zeros(shape, np.int64)
    expected_tags = np.zeros(shape, np.uint64)
    for row, (chunk, count) in enumerate(zip(rows, num_pages, strict=True)):
        block_tables[row, :count] = chunk.seq.block_table[:count]
        expected_tags[row, :count] = chunk.seq.tags[:count]
    return block_tables, expected_tags


def _input_ids(rows: Sequence[Chunk]) -> Ints:
    ids = [chunk.seq.tokens[chunk.seq.num_computed : chunk.context_len] for chunk in rows]
    return np.array([token for row in ids for token in row], np.int64)
