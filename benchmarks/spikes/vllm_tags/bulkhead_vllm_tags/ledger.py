"""Which block has which tag, and which tags each request's table was given. No vLLM in here.

`tag = domain_slot:16 | generation:48`, as in Bulkhead's own engine. Generations come from one
counter, so no two allocations share a tag. A tag changes when a block is given up, and again when
it is allocated; while a block is cached it stays. What a request was given is written down at that
moment, and never read from the pool again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

GENERATION_BITS = 48
SYSTEM_SLOT = 0  # blocks that nobody holds
NUM_SLOTS = 1 << 16
NULL_BLOCK = 0  # vLLM's own, which fills unused places of tables
Tags = NDArray[np.uint64]


@dataclass(slots=True)
class Row:
    """A request's own record of its table: the tag of each place, as it was when it got it."""

    slot: int
    tags: list[int] = field(default_factory=list)
    num_told: int = 0  # of these, how many the worker knows


@dataclass(frozen=True, slots=True)
class News:
    """What the worker must learn of a request's record: `tags` from place `start` on."""

    slot: int
    start: int
    tags: Sequence[int]


class Ledger:
    """The tags of a pool. `tags` has one a block, and is the authority for every check."""

    def __init__(self, tags: Tags) -> None:
        self.tags = tags
        self.rows: dict[str, Row] = {}
        self._generation = 0
        self._slots: dict[str, int] = {}
        self._holders: Counter[int] = Counter()  # slot -> blocks and requests that have it
        self._names: dict[int, str] = {}
        self._free_slots = list(range(NUM_SLOTS - 1, SYSTEM_SLOT, -1))
        self._entries: dict[tuple[bytes, int], int] = {}  # a prefix entry -> its block's tag
        self._allocating = SYSTEM_SLOT
        for block in range(len(tags)):
            self._retag(block, SYSTEM_SLOT)

    @contextmanager
    def allocating_for(self, request: str, domain: str) -> Iterator[None]:
        """Blocks that are allocated meanwhile are this domain's."""
        row = self.rows.get(request) or self._open(request, domain)
        self._allocating = row.slot
        try:
            yield
        finally:
            self._allocating = SYSTEM_SLOT

    def allocated(self, blocks: Iterable[int]) -> None:
        """These blocks have a new holder."""
        for block in blocks:
            self._retag(block, self._allocating)

    def given_up(self, blocks: Iterable[int]) -> None:
        """Nobody holds these blocks, and none is cached: a dangling reference shows from now on."""
        for block in blocks:
            self._retag(block, SYSTEM_SLOT)

    def entered(self, key: bytes, block: int) -> None:
        """The prefix cache has an entry for this block."""
        self._entries[key, block] = int(self.tags[block])

    def removed(self, key: bytes, block: int) -> None:
        """That entry is gone."""
        self._entries.pop((key, block), None)

    def no_entries(self) -> None:
        """The prefix cache was emptied."""
        self._entries.clear()

    def is_entry_current(self, key: bytes, block: int) -> bool:
        """Whether the block is still the one that was cached under this key."""
        return self._entries.get((key, block)) == int(self.tags[block])

    def num_held(self, request: str) -> int:
        """How many places of its table are written down."""
        return len(self.rows[request].tags)

    def hold(self, request: str, blocks: Iterable[int]) -> None:
        """Write down the tags of the next places of the request's table."""
        self.rows[request].tags += (int(self.tags[block]) for block in blocks)

    def news(self, requests: Iterable[str]) -> dict[str, News]:
        """What the worker doesn't know yet of these requests."""
        news = {}
        for request in requests:
            row = self.rows[request]
            if row.num_told < len(row.tags):
                news[request] = News(row.slot, row.num_told, row.tags[row.num_told :])
                row.num_told = len(row.tags)
        return news

    def forget(self, request: str) -> None:
        """The request has ended, or lost all its blocks and starts anew."""
        if row := self.rows.pop(request, None):
            self._close(row.slot)

    def still_held(self, request: str, table: Sequence[int]) -> list[bool]:
        """For each place of its table: whether the block is still the request's to give up."""
        row = self.rows.get(request)
        tags = row.tags if row else []
        return [
            place < len(tags) and int(self.tags[block]) == tags[place]
            for place, block in enumerate(table)
        ]

    def _open(self, request: str, domain: str) -> Row:
        slot = self._slots.get(domain)
        if slot is None:
            slot = self._slots[domain] = self._free_slots.pop()
            self._names[slot] = domain
        self._holders[slot] += 1
        row = self.rows[request] = Row(slot)
        return row

    def _close(self, slot: int) -> None:
        # A slot is used again only once no block and no request has it: no old tag fits a new one.
        self._holders[slot] -= 1
        if slot != SYSTEM_SLOT and not self._holders[slot]:
            del self._holders[slot]
            del self._slots[self._names.pop(slot)]
            self._free_slots.insert(0, slot)

    def _retag(self, block: int, slot: int) -> None:
        before = int(self.tags[block])
        if block == NULL_BLOCK and before:
            return
        self._generation += 1
        self._holders[slot] += 1
        self.tags[block] = slot << GENERATION_BITS | self._generation
        if before:
            self._close(before >> GENERATION_BITS)
