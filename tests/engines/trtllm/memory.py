"""The pool's memory, which knows of each slot whose it is and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Read(NamedTuple):
    """What a row has read. The first two don't count slots that were taken on trust."""

    is_foreign: bool  # any that is another salt's
    is_wrong: bool  # any that says something else
    is_misled: bool  # any on trust that is another salt's and says something else


class Memory:
    """Slots of blocks. What is read is compared with what should be there."""

    def __init__(self, num_blocks: int, size: int) -> None:
        self._num_blocks, self._size = num_blocks, size
        self._salts = np.zeros((num_blocks + 1, size), np.int64)  # 0: nobody ever wrote there
        self._texts = np.zeros((num_blocks + 1, size), np.int64)  # the last block: no page
        self._trusted_salts = np.zeros((num_blocks + 1, size), np.int64)
        self._trusted_texts = np.zeros((num_blocks + 1, size), np.int64)

    def copy(self, source: int, target: int, tokens: int) -> None:
        for slots in (self._salts, self._texts, self._trusted_salts, self._trusted_texts):
            slots[target, :tokens] = slots[source, :tokens]

    def write(self, table: Sequence[int], salt: int, first: int, texts: Sequence[int]) -> None:
        """From a row's place `first` on; what lies beyond its table, or in no page, is lost."""
        blocks = self._blocks(table)
        places = np.arange(first, min(first + len(texts), len(blocks) * self._size))
        where = blocks[places // self._size], places % self._size
        self._salts[where] = salt
        self._texts[where] = texts[: len(places)]
        self._trusted_salts[where] = self._trusted_texts[where] = 0

    def read(self, table: Sequence[int], salt: int, texts: Sequence[int]) -> Read:
        blocks = self._blocks(table)
        size = min(len(texts), len(blocks) * self._size)
        is_page = np.repeat(blocks < self._num_blocks, self._size)[:size]
        salts, said, trusted_salts, trusted_texts = (
            slots[blocks].ravel()[:size]
            for slots in (self._salts, self._texts, self._trusted_salts, self._trusted_texts)
        )
        is_foreign, is_wrong = (salts != salt) & is_page, (said != texts[:size]) & is_page
        on_trust = (trusted_salts == salt) & (trusted_texts == texts[:size])
        return Read(
            bool((is_foreign & ~on_trust).any()),
            bool((is_wrong & ~on_trust).any()),
            bool((is_foreign & is_wrong & on_trust).any()),
        )

    def trust(self, before: Memory, table: Sequence[int], salt: int, found: Sequence[int]) -> None:
        """A row is said to have found these; `before` is what was there when it hadn't come yet.

        A hit is taken on trust where that block held that text of that salt; and one within a
        block, where any did: nobody is told which block it was, or was copied.
        """
        blocks = self._blocks(table).tolist()
        for block, start in zip(blocks, range(0, len(found), self._size), strict=False):
            texts = found[start : start + self._size]
            holders = before._holders(salt, texts)
            if block in holders or (len(texts) < self._size and len(holders)):
                self._trusted_salts[block, : len(texts)] = salt
                self._trusted_texts[block, : len(texts)] = texts

    def _holders(self, salt: int, texts: Sequence[int]) -> Ints:
        """The blocks that begin with just these, written for that salt, or on trust."""
        first = slice(0, len(texts))
        is_held = (self._salts[:-1, first] == salt) & (self._texts[:-1, first] == texts)
        is_trusted = self._trusted_salts[:-1, first] == salt
        is_trusted &= self._trusted_texts[:-1, first] == texts
        return np.flatnonzero((is_held | is_trusted).all(axis=1))

    def _blocks(self, table: Sequence[int]) -> Ints:
        """With one number for all that is no page."""
        blocks = np.array(table, np.int64)
        blocks[(blocks < 0) | (blocks >= self._num_blocks)] = self._num_blocks
        return blocks
