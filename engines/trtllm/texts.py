"""What a request says, block by block, and keys for its full blocks.

A key stands for a block's tokens and all before them. A hash that has no key of its own is enough:
it finds mistakes within a tenant, and tenants are told apart by other means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class FullBlock(NamedTuple):
    """Of a text. `place`: which of them it is, from 0."""

    place: int
    parent: int  # the key of all before it
    tokens: list[int]
    key: int


class Text:
    """Grows; holds no more tokens than a block."""

    __slots__ = ("_tokens_per_block", "key", "length", "num_full", "tail")

    def __init__(self, domain: int, adapter: int, tokens_per_block: int) -> None:
        self.length = 0  # tokens
        self.num_full = 0  # blocks
        self.key = hash((domain, adapter))  # of all full blocks
        self.tail: list[int] = []
        self._tokens_per_block = tokens_per_block

    def write(self, tokens: Sequence[int]) -> list[FullBlock]:
        """It goes on so. The blocks that are full now, in order."""
        tail, size = self.tail, self._tokens_per_block
        tail.extend(tokens)
        self.length += len(tokens)
        if len(tail) < size:  # as in most steps
            return []
        full = []
        for start in range(0, len(tail) - size + 1, size):
            chunk = tail[start : start + size]
            parent, self.key = self.key, hash((self.key, *chunk))
            full.append(FullBlock(self.num_full, parent, chunk, self.key))
            self.num_full += 1
        del tail[: len(full) * size]
        return full
