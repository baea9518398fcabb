"""What a request says, as keys: one for each block that its tokens fill.

A key stands for a block's tokens and all before them. A hash that has no key of its own is enough:
it finds mistakes within a tenant, and tenants are told apart by other means.
"""

from __future__ import annotations

from collections.abc import Sequence


class Text:
    """Grows; holds no more tokens than a block."""

    def __init__(self, domain: int, adapter: int, tokens_per_block: int) -> None:
        self.num_full = 0  # blocks
        self._key = hash((domain, adapter))
        self._tail: list[int] = []
        self._tokens_per_block = tokens_per_block

    def __len__(self) -> int:
        return self.num_full * self._tokens_per_block + len(self._tail)

    def write(self, tokens: Sequence[int]) -> list[int]:
        """It goes on so. The keys of the blocks that are full now, in order."""
        tail, size, keys = self._tail, self._tokens_per_block, []
        tail.extend(tokens)
        num_full = len(tail) // size
        for start in range(0, num_full * size, size):
            self._key = hash((self._key, *tail[start : start + size]))
            keys.append(self._key)
        if num_full:
            self.num_full += num_full
            del tail[: num_full * size]
        return keys
