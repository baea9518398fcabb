"""The pool's memory, which knows of each slot whose it is and what it says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class Memory:
    """Slots of blocks. What is read is compared with what should be there."""

    def __init__(self, num_blocks: int, size: int) -> None:
        self._size = size
        self._salts = np.zeros(num_blocks * size, np.int64)  # 0: nobody ever wrote there
        self._texts = np.zeros(num_blocks * size, np.int64)

    def copy(self, source: int, target: int, tokens: int) -> None:
        for slots in (self._salts, self._texts):
            slots[target * self._size :][:tokens] = slots[source * self._size :][:tokens]

    def write(self, table: Sequence[int], salt: int, first: int, texts: Sequence[int]) -> None:
        """From a row's place `first` on; what lies beyond its table, or in no page, is lost."""
        where = self._slots(table, first, first + len(texts))
        here = where >= 0
        self._salts[where[here]] = salt
        self._texts[where[here]] = np.array(texts[: len(where)], np.int64)[here]

    def read(self, table: Sequence[int], salt: int, texts: Sequence[int]) -> tuple[bool, bool]:
        """Whether any slot is another salt's, and whether any says something else."""
        where = self._slots(table, 0, len(texts))
        here = where >= 0
        found = self._salts[where[here]]
        wrong = self._texts[where[here]] != np.array(texts[: len(where)], np.int64)[here]
        return bool((found != salt).any()), bool(wrong.any())

    def _slots(self, table: Sequence[int], first: int, end: int) -> Ints:
        """-1 where there is no page."""
        places = np.arange(first, min(end, len(table) * self._size))
        blocks = np.array(table, np.int64)[places // self._size]
        is_page = (blocks >= 0) & (blocks < len(self._salts) // self._size)
        slots: Ints = np.where(is_page, blocks * self._size + places % self._size, -1)
        return slots
