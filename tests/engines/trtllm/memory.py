"""The pool's memory, which knows of each slot whose it is and what it says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class Memory:
    """Slots of blocks. What is read is compared with what should be there."""

    def __init__(self, num_blocks: int, size: int) -> None:
        self._num_blocks, self._size = num_blocks, size
        self._salts = np.zeros((num_blocks + 1, size), np.int64)  # 0: nobody ever wrote there
        self._texts = np.zeros((num_blocks + 1, size), np.int64)  # the last block: no page

    def copy(self, source: int, target: int, tokens: int) -> None:
        for slots in (self._salts, self._texts):
            slots[target, :tokens] = slots[source, :tokens]

    def write(self, table: Sequence[int], salt: int, first: int, texts: Sequence[int]) -> None:
        """From a row's place `first` on; what lies beyond its table, or in no page, is lost."""
        blocks = self._blocks(table)
        places = np.arange(first, min(first + len(texts), len(blocks) * self._size))
        where = blocks[places // self._size], places % self._size
        self._salts[where] = salt
        self._texts[where] = texts[: len(places)]

    def read(self, table: Sequence[int], salt: int, texts: Sequence[int]) -> tuple[bool, bool]:
        """Whether any slot is another salt's, and whether any says something else."""
        blocks = self._blocks(table)
        size = min(len(texts), len(blocks) * self._size)
        is_page = np.repeat(blocks < self._num_blocks, self._size)[:size]
        is_foreign = self._salts[blocks].ravel()[:size] != salt
        is_wrong = self._texts[blocks].ravel()[:size] != texts[:size]
        return bool((is_foreign & is_page).any()), bool((is_wrong & is_page).any())

    def _blocks(self, table: Sequence[int]) -> Ints:
        """With one number for all that is no page."""
        blocks = np.array(table, np.int64)
        blocks[(blocks < 0) | (blocks >= self._num_blocks)] = self._num_blocks
        return blocks
