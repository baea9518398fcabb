"""The shadow ledger's check in plain Python, as one would write it first: for `bench_guard`.

The same check of every block of every row; of what is told in a step it takes the new blocks alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from engines.trtllm.rows import Scheduled


class PlainShadow:
    """Tags by block in a list, and each row's blocks with the tags that they had."""

    def __init__(self, num_blocks: int) -> None:
        self.checked = 0
        self._tags = [0] * num_blocks
        self._generation = 0
        self._rows: dict[int, list[tuple[int, int]]] = {}

    def allocated(self, request: int, blocks: Sequence[int]) -> None:
        self._rows[request] = []
        self._give(request, blocks)

    def step(self, scheduled: Sequence[Scheduled]) -> list[tuple[int, int]]:
        """Requests and blocks that were given to others."""
        for item in scheduled:
            self._give(item.request, item.new_blocks)
        stale = []
        for item in scheduled:
            for block, tag in self._rows[item.request]:
                self.checked += 1
                if self._tags[block] != tag:
                    stale.append((item.request, block))
        return stale

    def _give(self, request: int, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._generation += 1
            self._tags[block] = self._generation
            self._rows[request].append((block, self._generation))
