"""Chunks of seqs -> the ragged arrays of one step. The one place that knows slots.

Rows of one token come first, so that attention can take them all at once. Everything is numpy, and
made anew for each step: no step can find the arrays of another. The runner wraps these very arrays
as tensors, so what `verify` checks is what attention reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engines.embedded.huge import Lender
from engines.embedded.seq import Chunk, Seq
from engines.kernels import native

Ints = NDArray[np.int64]
Tags = NDArray[np.uint64]
UNKNOWN = -1  # a token that the step before is still choosing
MEMORY = Lender()


@dataclass(frozen=True, slots=True)
class Batch:
    """One row a chunk. Tables are padded with the null page and its tag, both 0."""

    chunks: list[Chunk]
    input_ids: Ints  # [tokens] UNKNOWN where the step before has yet to choose
    positions: Ints  # [tokens]
    token_rows: Ints  # [tokens] the row that each token belongs to
    slot_mapping: Ints  # [tokens] page * page_size + offset: where its KV is written
    block_tables: Ints  # [rows, max_pages]
    expected_tags: Tags  # [rows, max_pages] as recorded by the seqs
    row_domains: Ints  # [rows] domain slots, from the seqs and not from their tables
    row_owners: Ints  # [rows] serials, likewise
    num_public: Ints  # [rows] leading pages that are to be public instead
    public_domains: Ints  # [rows] and their domain slot
    context_lens: Ints  # [rows]
    query_lens: Ints  # [rows]
    num_pages: Ints  # [rows]
    copy_rows: Ints  # [copies] rows that begin with the copy of a page
    copy_sources: Ints  # [copies] the page copied
    copy_tags: Tags  # [copies] the source's tag, as recorded by the seq
    copy_domains: Ints  # [copies] the source's domain slot, from the seq
    view: native.StepView = field(init=False, repr=False)  # these very arrays, for native calls

    def __post_init__(self) -> None:
        if native.IS_BUILT:
            object.__setattr__(self, "view", self._borrowed())

    @property
    def last_tokens(self) -> Ints:
        """[rows] index of each row's last token in the ragged arrays."""
        return np.cumsum(self.query_lens) - 1

    @property
    def num_decodes(self) -> int:
        """Leading rows that compute one token."""
        return int((self.query_lens == 1).sum())

    def _borrowed(self) -> native.StepView:
        """Raises ValueError where the arrays' types or shapes don't fit each other."""
        return native.module.StepView(
            self.input_ids,
            self.positions,
            self.token_rows,
            self.slot_mapping,
            self.block_tables,
            self.expected_tags,
            self.row_domains,
            self.row_owners,
            self.num_public,
            self.public_domains,
            self.context_lens,
            self.query_lens,
            self.num_pages,
            self.copy_rows,
            self.copy_sources,
            self.copy_tags,
            self.copy_domains,
        )

    @property
    def choice_rows(self) -> Ints:
        """[choices] the row of each token after which the model's choice is asked, in order."""
        num_choices = [chunk.num_choices for chunk in self.chunks]
        return np.repeat(np.arange(len(self.chunks)), num_choices)

    @property
    def choice_tokens(self) -> Ints:
        """[choices] index of each such token: the last ones of its row, mostly one."""
        rows = self.choice_rows
        ends = np.cumsum(np.bincount(rows, minlength=len(self.chunks)))
        tokens: Ints = self.last_tokens[rows] + np.arange(len(rows)) - (ends - 1)[rows]
        return tokens

    def copy_targets(self, page_size: int) -> Ints:
        """[copies] the page copied to: the one that the row's first token is written to.

        Taken from the slot, so that the write guard over slots has seen it.
        """
        first_tokens = self.last_tokens - self.query_lens + 1
        targets: Ints = self.slot_mapping[first_tokens[self.copy_rows]] // page_size
        return targets

    def written(self, row: int, page_size: int) -> list[int]:
        """The pages that the step writes for a row."""
        slots = self.slot_mapping[self.token_rows == row]
        pages: list[int] = np.unique(slots // page_size).tolist()
        return pages

    def touched(self) -> Ints:
        """Every page that the step may read or write, some of them more than once."""
        return np.concatenate([self.block_tables.ravel(), self.copy_sources])

    def without(self, rows: Sequence[int]) -> Batch:
        """The same step without these rows: arrays of its own, so checked anew."""
        kept = np.ones(len(self.chunks), np.bool_)
        kept[list(rows)] = False
        tokens, copies = kept[self.token_rows], kept[self.copy_rows]
        new_rows = np.cumsum(kept) - 1
        width = int(self.num_pages[kept].max(initial=0))
        return Batch(
            chunks=[chunk for chunk, keep in zip(self.chunks, kept, strict=True) if keep],
            input_ids=self.input_ids[tokens],
            positions=self.positions[tokens],
            token_rows=new_rows[self.token_rows[tokens]],
            slot_mapping=self.slot_mapping[tokens],
            block_tables=self.block_tables[:, :width][kept],
            expected_tags=self.expected_tags[:, :width][kept],
            row_domains=self.row_domains[kept],
            row_owners=self.row_owners[kept],
            num_public=self.num_public[kept],
            public_domains=self.public_domains[kept],
            context_lens=self.context_lens[kept],
            query_lens=self.query_lens[kept],
            num_pages=self.num_pages[kept],
            copy_rows=new_rows[self.copy_rows[copies]],
            copy_sources=self.copy_sources[copies],
            copy_tags=self.copy_tags[copies],
            copy_domains=self.copy_domains[copies],
        )

    def with_tokens(self, chosen: Mapping[Seq, int]) -> Batch:
        """The same step, its unknown tokens filled in. Rows whose token never came are left out."""
        unknown = np.flatnonzero(self.input_ids == UNKNOWN)
        missing = []
        for index, row in zip(unknown.tolist(), self.token_rows[unknown].tolist(), strict=True):
            token = chosen.get(self.chunks[row].seq)
            if token is None:
                missing.append(row)
            else:
                self.input_ids[index] = token
        return self.without(missing) if missing else self


def build(chunks: Sequence[Chunk], page_size: int) -> Batch:
    """Lay out one step. Slots come from the block tables, tags and domains from the seqs."""
    rows = sorted(chunks, key=lambda chunk: chunk.num_tokens > 1)
    starts, query_lens, owners, domains, num_public, public_domains = _columns(rows)
    context_lens = starts + query_lens
    num_pages = (context_lens + (page_size - 1)) // page_size
    block_tables, expected_tags = _tables(rows, num_pages)
    firsts = query_lens.cumsum() - query_lens
    token_rows = np.arange(len(rows)).repeat(query_lens)
    positions = np.arange(len(token_rows)) + (starts - firsts)[token_rows]
    columns = positions // page_size
    # position % page_size, and the page instead of the column
    slots = positions + (block_tables[token_rows, columns] - columns) * page_size
    copies = [(row, chunk) for row, chunk in enumerate(rows) if chunk.source is not None]
    return Batch(
        chunks=rows,
        input_ids=_input_ids(rows),
        positions=positions,
        token_rows=token_rows,
        slot_mapping=slots,
        block_tables=block_tables,
        expected_tags=expected_tags,
        row_domains=domains,
        row_owners=owners,
        num_public=num_public,
        public_domains=public_domains,
        context_lens=context_lens,
        query_lens=query_lens,
        num_pages=num_pages,
        copy_rows=_ints([row for row, _ in copies]),
        copy_sources=_ints([chunk.source.id for _, chunk in copies if chunk.source]),
        copy_tags=np.array([chunk.source.tag for _, chunk in copies if chunk.source], np.uint64),
        copy_domains=_ints([chunk.seq.slot_of(chunk.start // page_size) for _, chunk in copies]),
    )


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, np.int64)


def _columns(rows: Sequence[Chunk]) -> Ints:
    """[6, rows] what stands in chunks and seqs, in the order in which `build` names it."""
    seqs = [chunk.seq for chunk in rows]
    numbers = [chunk.start for chunk in rows]
    numbers += [chunk.num_tokens for chunk in rows]
    numbers += [chunk.serial for chunk in rows]
    numbers += [seq.domain_slot for seq in seqs]
    numbers += [seq.num_public_pages for seq in seqs]
    numbers += [seq.public_slot for seq in seqs]
    return _ints(numbers).reshape(6, len(rows))


def _tables(rows: Sequence[Chunk], num_pages: Ints) -> tuple[Ints, Tags]:
    """Each seq's table and tags, copied whole: for long contexts it is here that time goes."""
    counts = num_pages.tolist()
    width = max(counts, default=0)
    shape, size = (len(rows), width), 8 * len(rows) * width
    room = MEMORY.zeros(2 * size)
    ids, tags = room[:size].cast("q"), room[size:].cast("Q")
    start = 0
    for chunk, count in zip(rows, counts, strict=True):
        ids[start : start + count] = chunk.seq.block_table[:count]
        tags[start : start + count] = chunk.seq.tags[:count]
        start += width
    return (
        np.frombuffer(ids, np.int64).reshape(shape),
        np.frombuffer(tags, np.uint64).reshape(shape),
    )


def _input_ids(rows: Sequence[Chunk]) -> Ints:
    ids: list[int] = []
    for chunk in rows:
        known = chunk.seq.tokens[chunk.start : chunk.context_len]
        ids += known
        ids += [UNKNOWN] * (chunk.num_tokens - len(known) - len(chunk.drafts))
        ids += chunk.drafts
    return _ints(ids)
