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
from engines.trtllm.blocks import NOT_KNOWN, NULL, SPOILED, Blocks, Ints
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
        self._blocks = Blocks(num_blocks)
        self._roll = Roll(self._blocks, tokens_per_block)
        self._teller = Teller(self._blocks, self.counters)

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
        num_shared = min(computed_tokens // self._tokens_per_block, len(blocks))
        row = Row(request, Owner.of(salt), computed_tokens, num_shared)
        row.last_step = self.counters.steps + 1
        self._roll.add(row)
        if salt is None and self._requires_salt:
            self._teller.tell(row, kinds.UNSALTED)
        if len(tokens) and computed_tokens >= len(tokens):
            self._teller.tell(row, kinds.SKIPPED)
        if computed_tokens % self._tokens_per_block and len(blocks) > num_shared:
            self.counters.unproven += 1
        keys: list[int] = []
        if len(tokens):
            row.text = Text(row.owner.domain, adapter, self._tokens_per_block)
            keys = row.text.write(tokens)
        self._share(row, blocks[:num_shared], keys)
        self._give(row, blocks[num_shared:])
        self._name(row, 0, keys)
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
            self._check_computed(row)
        self._check_tags(rows)
        self._roll.let_leave(self.counters.steps)
        return self._teller.take()

    def finished(self, request: int, blocks: Sequence[int] | None = None) -> list[Violation]:
        """A request has ended; `blocks` is its list as it was then, if told."""
        row = self._roll.get(request)
        if row is None:
            return []
        if blocks is not None:
            self._compare(row, blocks)
        self._roll.may_leave([row.serial])
        return self._teller.take()

    # A row's blocks

    def _share(self, row: Row, blocks: Sequence[int], keys: Sequence[int]) -> None:
        """Its hits, which must be of its salt, and hold what it says."""
        hits, ledger = self._found(row, blocks), self._blocks
        strange = (ledger.domains[hits] != row.owner.domain) & (hits != NULL)
        never = strange & (ledger.tags[hits] == 0)
        spoiled = strange & (ledger.domains[hits] == SPOILED)
        self._teller.tell_of(row, kinds.UNWRITTEN, hits[never])
        self._teller.tell_of(row, kinds.SPOILED, hits[spoiled])
        self._teller.tell_of(row, kinds.FOREIGN, hits[strange & ~never & ~spoiled])
        known = min(len(keys), len(hits))
        held = ledger.keys[hits[:known]]
        others = (held != keys[:known]) & (held != NOT_KNOWN) & ~strange[:known]
        self._teller.tell_of(row, kinds.CONTENT, hits[:known][others])
        row.append(hits, ledger.tags[hits])

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

    def _name(self, row: Row, first: int, keys: Sequence[int]) -> None:
        """What those of its blocks from `first` on that are its own will hold."""
        blocks = row.blocks[first : first + len(keys)]
        own = self._blocks.creators[blocks] == row.serial
        self._blocks.keys[blocks[own]] = np.array(keys[: len(blocks)], np.int64)[own]

    # A row in a step

    def _advanced(self, item: Scheduled, begun: list[Row]) -> Row:
        """The item's row, with what it has gained."""
        row = self._roll.get(item.request) or self._stranger(item.request)
        is_first, row.is_begun = not row.is_begun, True
        if is_first:
            begun.append(row)
        if item.table is not None:
            self._compare(row, item.table)
            self._give(row, item.table[row.num_blocks :])
        elif is_first:
            self._begin(row, item.new_blocks)
        elif len(item.new_blocks):
            self._gain(row, item)
        if row.text is not None:
            self._say(row, row.text, item.new_tokens, is_first)
        self._place(row, item.computed_position, item.num_tokens)
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

    def _say(self, row: Row, text: Text, tokens: Sequence[int], is_first: bool) -> None:
        if not is_first and len(tokens):
            first = text.num_full
            self._name(row, first, text.write(tokens))
        elif is_first and not len(tokens):
            row.text = None  # where what is told next goes on can't be known

    def _gain(self, row: Row, item: Scheduled) -> None:
        if row.is_cut:
            end = item.computed_position + item.num_tokens + self._lag
            gap = -(-end // self._tokens_per_block) - len(item.new_blocks) - row.num_blocks
            nothing = np.full(max(gap, 0), NULL, np.int64)
            row.append(nothing, nothing)
            row.num_hidden += max(gap, 0)
            row.is_cut = False
        self._give(row, item.new_blocks)

    def _place(self, row: Row, position: int, num_tokens: int) -> None:
        """Where it reads and writes."""
        end, size = position + num_tokens, self._tokens_per_block
        if position > row.computed:
            self._teller.tell(row, kinds.SKIPPED)
        missing = -(-end // size) - row.num_blocks
        if missing > 0:
            if row.is_cut or row.num_hidden:
                self.counters.hidden += missing
            else:
                self._teller.tell(row, kinds.SHORT)
        first = position // size
        if num_tokens and first < row.num_shared:
            self._teller.tell_of(row, kinds.SHARED, row.blocks[first : row.num_shared])
            self._blocks.spoil(row.blocks[first : row.num_shared])
        if row.num_nulls > row.num_hidden and (row.blocks[first : -(-end // size)] == NULL).any():
            self._teller.tell(row, kinds.UNBACKED)
        self.counters.hidden += row.num_hidden
        row.computed = max(row.computed, end)

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
        now = np.asarray(blocks[: len(known)], np.int64)
        other = now[(now != known) & (known != NULL)]
        self._teller.tell_of(row, kinds.REPLACED, other)
        self._blocks.spoil(other)

    def _check_computed(self, row: Row) -> None:
        """Each of its hits is computed, or will be in this step."""
        hits = row.blocks[: row.num_shared]
        hits = hits[hits != NULL]
        filled = self._roll.filled(hits)
        self._teller.tell_of(
            row, kinds.UNWRITTEN, hits[filled + self._lag < self._tokens_per_block]
        )

    def _check_tags(self, rows: Sequence[Row]) -> None:
        """Every block of every row. Of a block that two have, both are told."""
        if not rows:
            return
        cells = np.concatenate([row.cells for row in rows], axis=1)
        stale = self._blocks.tags[cells[0]] != cells[1]
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
