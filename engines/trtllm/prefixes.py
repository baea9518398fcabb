"""What a new row found in the cache: whether it is its own salt's, and holds what it says.

Whole blocks are shared, and named. But a prompt may also end within a block that begins with tokens
computed before: in a block that nobody uses, taken over as it is, or in a copy of one in use, and
then neither which it was is told, nor what was copied. So there must be, or have been until now, a
block of the same salt that holds those tokens after the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engines.trtllm import violations as kinds
from engines.trtllm.blocks import NOT_KNOWN, NULL, SPOILED, Blocks, Ints
from engines.trtllm.roll import Roll
from engines.trtllm.rows import Row
from engines.trtllm.telling import Teller
from engines.trtllm.texts import FullBlock


class Prefixes:
    """Looks before the row is in any step, but for `check_computed`."""

    def __init__(self, blocks: Blocks, roll: Roll, teller: Teller, lag: int) -> None:
        """`lag`: how many of the last tokens of a text may be unknown yet."""
        self._blocks, self._roll, self._teller, self._lag = blocks, roll, teller, lag
        self.knows_texts = True  # of all requests, from their start to their end

    def check_hits(self, row: Row, hits: Ints, full: Sequence[FullBlock]) -> None:
        """Whole blocks that were found; `full` begins with those that it says, if known."""
        blocks = self._blocks
        strange = (blocks.domains[hits] != row.owner.domain) & (hits != NULL)
        never = strange & (blocks.tags[hits] == 0)
        spoiled = strange & (blocks.domains[hits] == SPOILED)
        self._teller.tell_of(row, kinds.UNWRITTEN, hits[never])
        self._teller.tell_of(row, kinds.SPOILED, hits[spoiled])
        self._teller.tell_of(row, kinds.FOREIGN, hits[strange & ~never & ~spoiled])
        blocks.disown(hits[strange])  # for it may be where a copy went, over what it held
        said = min(len(full), len(hits))
        own = ~strange[:said] & (hits[:said] != NULL)
        self._check_content(row, hits[:said], own, full[:said])

    def check_part(self, row: Row, block: int, parent: int, tokens: Sequence[int]) -> None:
        """Tokens that were found in the first block that it writes itself."""
        blocks = self._blocks
        was_spoiled = bool(blocks.has(np.array([block]))[0]) and (
            blocks.domains[block] == SPOILED and blocks.parents[block] == parent
        )
        if not self.knows_texts:
            self._teller.counters.unproven += 1
        elif was_spoiled or not len(self._holders(row, parent, tokens)):
            self._teller.tell(row, kinds.UNPROVEN, block)

    def check_computed(self, row: Row) -> None:
        """Once its first step is told: each hit is computed, or will be in that step."""
        hits = row.blocks[: row.num_shared]
        hits = hits[hits != NULL]
        short = self._roll.filled(hits) + self._lag < self._blocks.tokens.shape[1]
        self._teller.tell_of(row, kinds.UNWRITTEN, hits[short])

    def _check_content(self, row: Row, hits: Ints, own: Ints, full: Sequence[FullBlock]) -> None:
        held = self._blocks.keys[hits]
        other = own & (held != np.array([block.key for block in full], np.int64))
        for place in np.flatnonzero(other & (held == NOT_KNOWN)).tolist():
            said = full[place]
            if not self.knows_texts or hits[place] in self._holders(row, said.parent, said.tokens):
                other[place] = False
        self._teller.tell_of(row, kinds.CONTENT, hits[other])
        self._blocks.disown(hits[other])

    def _holders(self, row: Row, parent: int, tokens: Sequence[int]) -> Ints:
        """The blocks of its salt that hold these tokens after what `parent` is the key of."""
        blocks, sure = self._blocks, max(len(tokens) - self._lag, 0)
        domain = row.owner.domain
        self._roll.write_down_tails(domain, parent)
        found = np.flatnonzero((blocks.parents == parent) & (blocks.domains == domain))
        found = found[blocks.lengths[found] >= sure]
        found = found[(blocks.tokens[found, :sure] == tokens[:sure]).all(axis=1)]
        computed: Ints = found[self._roll.filled(found) >= sure]
        return computed
