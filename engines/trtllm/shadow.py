"""TensorRT-LLM's KV blocks as its connector sees them go by, and every row of every step checked.

Rank 0 of TensorRT-LLM tells a connector which blocks a new request was given, and in each step
what the scheduled requests' lists have gained. It doesn't tell when blocks are free again. So the
ledger counts no owners. A block has a new tag whenever a row gets it afresh, and a row may use
exactly what still has the tag that it got: whoever has left needn't say so, and whoever runs on
with a block that went to another is found in the first step that would read it.

    shadow = Shadow(32, requires_salt=True, num_blocks=9000)
    shadow.allocated(7, "salt", [3, 4, 5], computed_tokens=32, tokens=prompt)
    shadow.step([Scheduled(7, [3, 4, 5], 32, 40)])
    shadow.finished(7)

What it can't see it doesn't guess: docs/tensorrt-llm.md, "What the guard sees".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from engines.trtllm import violations as kinds
from engines.trtllm.blocks import NOT_KNOWN, NULL, Blocks, Ints
from engines.trtllm.prefixes import Prefixes
from engines.trtllm.roll import Roll
from engines.trtllm.rows import Owner, Row, Scheduled
from engines.trtllm.telling import Counters, Teller
from engines.trtllm.texts import Text
from engines.trtllm.violations import CoverageLost, Violation

__all__ = ["Counters", "CoverageLost", "Scheduled", "Shadow", "Violation"]


class Shadow:
    """The ledger. Not for several threads. Any exception but ValueError means that it is broken."""

    def __init__(
        self,
        tokens_per_block: int,
        *,
        requires_salt: bool,
        num_blocks: int | None = None,
        is_overlapped: bool = False,
    ) -> None:
        """`is_overlapped`: positions may be told one token late, as the overlap scheduler does."""
        if tokens_per_block < 1:
            raise ValueError(f"tokens_per_block is {tokens_per_block}, and must be at least 1")
        self.counters = Counters()
        self._tokens_per_block = tokens_per_block
        self._requires_salt = requires_salt
        self._lag = 1 if is_overlapped else 0
        self._blocks = Blocks(tokens_per_block, num_blocks)
        self._roll = Roll(self._blocks, tokens_per_block)
        self._teller = Teller(self._blocks, self.counters)
        self._prefixes = Prefixes(self._blocks, self._roll, self._teller, self._lag)

    @property
    def num_remembered(self) -> int:
        """Rows: at most one a block of the pool, and a few that have departed."""
        return len(self._roll)

    def set_pool(self, num_blocks: int) -> None:
        """How many blocks there are, where that is known late: all ids are below."""
        self._blocks.limit = num_blocks

    def allocated(
        self,
        request: int,
        salt: str | int | None,
        blocks: Sequence[int],
        computed_tokens: int,
        tokens: Sequence[int] = (),
        adapter: int = 0,
    ) -> list[Violation]:
        """A request begins, or begins anew: its whole list, and how many tokens were found cached.

        `tokens` is its prompt, if it can be had. What is told here, or by the first step after.
        """
        size = self._tokens_per_block
        row = Row(
            request, Owner.of(salt), computed_tokens, min(computed_tokens // size, len(blocks))
        )
        row.last_step = self.counters.steps + 1
        self._roll.add(row)
        if salt is None and self._requires_salt:
            self._teller.tell(row, kinds.UNSALTED)
        text = Text(row.owner.domain, adapter, size)
        keys, full = [text.key], text.write(tokens)
        if len(tokens):
            row.text, row.prompt_length = text, len(tokens)
            keys += [block.key for block in full]
        else:
            self._prefixes.knows_texts = False
        if len(tokens) and computed_tokens >= len(tokens):
            self._teller.tell(row, kinds.SKIPPED)
        elif computed_tokens % size:
            start = computed_tokens // size * size
            parent = keys[start // size] if len(tokens) else NOT_KNOWN
            block = blocks[row.num_shared] if len(blocks) > row.num_shared else NULL
            self._prefixes.check_part(row, block, parent, tokens[start:computed_tokens])
        hits = self._found(row, blocks[: row.num_shared])
        self._prefixes.check_hits(row, hits, full)
        row.append(hits, self._blocks.tags[hits])
        self._give(row, blocks[row.num_shared :])
        row.write_down(self._blocks, full)
        if not len(row.own(self._blocks)):
            self._roll.may_leave([row.serial])  # for nobody will take a block from it
        return self._teller.take()

    def step(self, scheduled: Iterable[Scheduled]) -> list[Violation]:
        """Before the forward pass: what each of its rows has gained, and all that each will read.

        Raises CoverageLost.
        """
        self.counters.steps += 1
        begun: list[Row] = []
        rows = [self._advanced(item, begun) for item in scheduled]
        for row in begun:
            self._prefixes.check_computed(row)
        self._check_tags(rows)
        self._roll.let_leave(self.counters.steps)
        return self._teller.take()

    def failed(self) -> None:
        """The last step's pass broke off: what it would have computed isn't there.

        To be told before anything else is: TensorRT-LLM lets such blocks be found all the same.
        """
        for row in self._roll.rows():
            if row.is_begun and row.last_step == self.counters.steps:
                row.break_off(self._blocks, self._tokens_per_block)

    def finished(self, request: int, blocks: Sequence[int] | None = None) -> list[Violation]:
        """A request has ended; `blocks` is its list as it was then, if told."""
        row = self._roll.get(request)
        if row is None:
            return []
        if blocks is not None:
            self._compare(row, blocks)
        self._roll.may_leave([row.serial])
        return self._teller.take()

    def seen_elsewhere(self, request: int, kind: str, block: int) -> list[Violation]:
        """Somebody else found this of a request: once a kind, and what it has is nobody's then."""
        row = self._roll.get(request)
        if row is None:
            return [Violation(request, kind, block, self.counters.steps, None, None)]
        self._teller.tell(row, kind, block)
        return self._teller.take()

    # A row's blocks

    def _give(self, row: Row, blocks: Sequence[int]) -> None:
        """What it writes itself. Whoever had these has left, or is told when it runs."""
        given, ledger = self._found(row, blocks), self._blocks
        real = given != NULL
        self._roll.may_leave(ledger.creators[given[real]].tolist())
        tags = np.full(len(given), NULL, np.int64)
        indexes = row.num_blocks + np.flatnonzero(real)
        tags[real] = ledger.give(given[real], indexes, row.domain, row.serial)
        row.append(given, tags)

    def _found(self, row: Row, blocks: Sequence[int]) -> Ints:
        """The same, with NULL for those that the pool doesn't have."""
        found = np.array(blocks, np.int64)
        outside = ~self._blocks.has(found) & (found != NULL)
        self._teller.tell_of(row, kinds.OUTSIDE, found[outside])
        found[outside] = NULL
        return found

    # A row in a step

    def _advanced(self, item: Scheduled, begun: list[Row]) -> Row:
        """The item's row, with what it has gained."""
        request, new_blocks, position, num_tokens, new_tokens, table = item
        row = self._roll.get(request) or self._stranger(request)
        is_first, row.is_begun = not row.is_begun, True
        end = position + num_tokens
        if is_first:
            begun.append(row)
        if table is not None:
            self._compare(row, table)
            if len(table) > row.num_blocks:
                self._give(row, table[row.num_blocks :])
        elif is_first:
            self._begin(row, new_blocks)
        elif len(new_blocks):
            self._gain(row, new_blocks, end)
        if row.text is not None:  # in its first step its prompt is told again
            self._say(row, row.text, () if is_first else new_tokens, end)
        size, may_begin = self._tokens_per_block, row.computed + self._lag
        is_odd = row.num_nulls or end > row.num_blocks * size
        if is_odd or not row.num_shared * size <= position <= may_begin:  # hardly ever
            self._place(row, position, end)
        row.was_computed = row.computed
        if end > row.computed:
            row.computed = end
        row.last_step = self.counters.steps
        return row

    def _begin(self, row: Row, blocks: Sequence[int]) -> None:
        """In its first step a new request is told whole; one whose id was there before, in part."""
        hidden = row.num_blocks - len(blocks)
        if hidden > 0:
            self._compare(row, blocks, hidden)
            row.is_cut = not len(blocks)
        else:
            self._compare(row, blocks)
            self._give(row, blocks[row.num_blocks :])

    def _say(self, row: Row, text: Text, tokens: Sequence[int], end: int) -> None:
        if full := text.write(tokens):
            row.write_down(self._blocks, full)
        if end != text.length and (end > text.length or row.computed >= row.prompt_length):
            row.text, self._prefixes.knows_texts = None, False  # less was told of it than it says

    def _gain(self, row: Row, blocks: Sequence[int], end: int) -> None:
        """What follows a gap belongs at the row's end, which is `end` tokens."""
        gap = -(-(end + self._lag) // self._tokens_per_block) - len(blocks) - row.num_blocks
        if row.is_cut and gap > 0:
            self._teller.tell(row, kinds.HIDDEN)
            self._give(row, [NULL] * gap)
        row.is_cut = False
        self._give(row, blocks)

    def _place(self, row: Row, position: int, end: int) -> None:
        """It reads up to `end`, and writes from `position` on."""
        size = self._tokens_per_block
        if position > row.computed + self._lag:
            self._teller.tell(row, kinds.SKIPPED)
        if end > row.num_blocks * size:
            self._teller.tell(row, kinds.HIDDEN if row.is_cut else kinds.SHORT)
        first = position // size
        if first < row.num_shared and position < end:
            self._teller.tell_of(row, kinds.SHARED, row.blocks[first : row.num_shared])
            self._blocks.spoil(row.blocks[first : row.num_shared])
        if row.num_nulls and (row.blocks[first : -(-end // size)] == NULL).any():
            self._teller.tell(row, kinds.UNBACKED)

    def _stranger(self, request: int) -> Row:
        """A row for one that nobody ever told of."""
        row = Row(request, Owner.of(None), 0, 0)
        row.is_begun = True
        self._roll.add(row)
        self._roll.may_leave([row.serial])
        self._teller.tell(row, kinds.UNKNOWN)
        row.told.update(kinds.KINDS)
        return row

    # The checks

    def _compare(self, row: Row, blocks: Sequence[int], first: int = 0) -> None:
        """Whether its list, from `first` on, is still what was told."""
        known = row.blocks[first : first + len(blocks)]
        if list(blocks[: len(known)]) == known.tolist():  # nearly always, and quicker than arrays
            return
        now = np.asarray(blocks[: len(known)], np.int64)
        row.drop(first + np.flatnonzero((now == NULL) & (known != NULL)))
        other = now[(now != known) & (known != NULL)]
        self._teller.tell_of(row, kinds.REPLACED, other)
        self._blocks.spoil(other)

    def _check_tags(self, rows: Sequence[Row]) -> None:
        """Every block of every row. Of a block that two have, both are told."""
        if not rows:
            return
        cells = np.concatenate([row.cells for row in rows], axis=1)
        stale = self._blocks.tags.take(cells[0]) != cells[1]  # quicker than by index
        if stale.size != sum(row.num_blocks for row in rows):
            raise CoverageLost(f"{stale.size} blocks checked of {len(rows)} rows")
        self.counters.checked += stale.size - sum(row.num_nulls for row in rows)
        if stale.any():
            self._tell_stale(rows)

    def _tell_stale(self, rows: Sequence[Row]) -> None:
        """And whoever else has such a block, which may be written to by a stranger in this step."""
        stale = [self._stale_of(row, kinds.STALE) for row in rows]
        self._blocks.spoil(np.unique(np.concatenate(stale)))
        for row in self._roll.rows():
            if kinds.STALE not in row.told:
                self._stale_of(row, kinds.DOUBLE)

    def _stale_of(self, row: Row, kind: str) -> Ints:
        blocks, tags = row.cells
        stale: Ints = blocks[self._blocks.tags[blocks] != tags]
        self._teller.tell_of(row, kind, stale)
        return stale
