"""What the ledger knows of each block of TensorRT-LLM's pool.

A block's tag changes whenever it is given to a request anew. Whoever remembers the tag may use the
block; nothing counts owners, since nobody tells when one leaves: a cancelled request never does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

NULL = -1  # a page that isn't there: TensorRT-LLM's own number for it
NOBODY = -1  # instead of a row's serial number
SPOILED = -1  # the domain of what a row in violation had
NOT_KNOWN = 0  # the key of a block if what it holds can't be said
_UNBOUNDED = 1 << 24  # blocks, where the pool's size isn't told: higher ids are garbage
_FIRST = 1024


class Blocks:
    """Arrays by block id, that grow as ids are seen. Their last entry is NULL's."""

    def __init__(self, tokens_per_block: int, num_blocks: int | None = None) -> None:
        self.limit = _UNBOUNDED if num_blocks is None else num_blocks
        self._generation = 0
        size = min(self.limit, _FIRST) + 1
        self.tags = np.zeros(size, np.int64)  # 0: never given to anybody
        self.domains = np.zeros(size, np.int64)  # whose what it holds is
        self.creators = np.full(size, NOBODY, np.int64)  # serial number of the row it was given to
        self.indexes = np.zeros(size, np.int64)  # which block of that row it was
        self.filled = np.zeros(size, np.int64)  # tokens computed in it, once that row has left
        self.keys = np.zeros(size, np.int64)  # of its tokens and all before them, if it is full
        self.parents = np.zeros(size, np.int64)  # the key of all before them
        self.lengths = np.zeros(size, np.int64)  # how many of its tokens are known
        self.tokens = np.zeros((size, tokens_per_block), np.int32)
        self.tags[NULL] = NULL

    def has(self, blocks: Ints) -> npt.NDArray[np.bool_]:
        """Which of them the pool has; there is room for these now."""
        inside = (blocks >= 0) & (blocks < self.limit)
        highest = int(blocks.max(initial=0, where=inside))
        if highest >= len(self.tags) - 1:
            self._grow(highest)
        return inside

    def give(self, blocks: Ints, indexes: Ints, domain: int, creator: int) -> Ints:
        """To a row, afresh, at these places of it. Their new tags; a block twice has the later."""
        tags = np.arange(1, len(blocks) + 1) + self._generation
        self._generation += len(blocks)
        self.tags[blocks] = tags
        self.domains[blocks] = domain
        self.indexes[blocks] = indexes
        self.creators[blocks] = creator
        self.keys[blocks] = NOT_KNOWN
        self.filled[blocks] = self.lengths[blocks] = 0
        return tags

    def say(self, block: int, parent: int, tokens: Sequence[int], key: int = NOT_KNOWN) -> None:
        """What it holds, or will once that is computed; a key if it is full."""
        self.keys[block], self.parents[block] = key, parent
        self.lengths[block] = len(tokens)
        self.tokens[block, : len(tokens)] = tokens

    def disown(self, blocks: Ints) -> None:
        """What they hold is no salt's: no hit for anybody, but whoever has them reads on."""
        self.domains[blocks] = SPOILED

    def spoil(self, blocks: Ints) -> None:
        """No row has them any more, and what they hold is no salt's."""
        blocks = blocks[self.has(blocks)]
        self.give(blocks, np.zeros_like(blocks), SPOILED, NOBODY)

    def _grow(self, highest: int) -> None:
        size = min(self.limit, 2 * highest + 1) + 1
        for name, old in list(vars(self).items()):
            if isinstance(old, np.ndarray):
                new = np.full(
                    (size, *old.shape[1:]), NOBODY if name == "creators" else 0, old.dtype
                )
                new[: len(old) - 1] = old[:NULL]
                setattr(self, name, new)
        self.tags[NULL] = NULL
