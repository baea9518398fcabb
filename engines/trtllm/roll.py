"""Which rows there are, and which have left: TensorRT-LLM says so of some only.

A row leaves once it is said to have ended, or a block of its own went to another; never while it
is in steps. What is remembered is bounded: each row that stays has a block of its own, and so there
are no more than blocks; of those that left, the last 1024 are known again should they run on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

from engines.trtllm.blocks import Blocks, Ints
from engines.trtllm.rows import Row

MOST_DEPARTED = 1024


class Roll:
    """By request id, and by the serial number under which blocks remember their row."""

    def __init__(self, blocks: Blocks, tokens_per_block: int) -> None:
        self._blocks = blocks
        self._tokens_per_block = tokens_per_block
        self._rows: dict[int, Row] = {}
        self._by_serial: dict[int, Row] = {}
        self._departed: OrderedDict[int, Row] = OrderedDict()
        self._leaving: set[int] = set()  # serial numbers

    def __len__(self) -> int:
        return len(self._rows) + len(self._departed)

    def rows(self) -> Iterable[Row]:
        """Those that haven't left."""
        return self._rows.values()

    def add(self, row: Row) -> None:
        """In place of one with its request id."""
        self.depart(self._rows.get(row.request))
        self._departed.pop(row.request, None)
        self._rows[row.request] = self._by_serial[row.serial] = row

    def get(self, request: int) -> Row | None:
        """None: nobody told of it, or it left so long ago."""
        row = self._rows.get(request)
        if row is None and (row := self._departed.get(request)) is not None:
            self.add(row)
            self._leaving.add(row.serial)
        return row

    def may_leave(self, serials: Iterable[int]) -> None:
        """These, once they are in no step."""
        self._leaving.update(serials)

    def let_leave(self, step: int) -> None:
        """After the step with this number."""
        stay = set()
        for serial in self._leaving:
            row = self._by_serial.get(serial)
            if row is not None and row.last_step >= step:
                stay.add(serial)
            else:
                self.depart(row)
        self._leaving = stay

    def depart(self, row: Row | None) -> None:
        """What it computed stays written down."""
        if row is None:
            return
        del self._rows[row.request], self._by_serial[row.serial]
        own = row.own(self._blocks)
        self._blocks.filled[own] = self._computed(row, own)
        row.write_down_tail(self._blocks)
        self._departed[row.request] = row
        while len(self._departed) > MOST_DEPARTED:
            self._departed.popitem(last=False)

    def write_down_tails(self, domain: int, parent: int) -> None:
        """What the rows of a domain say in the blocks that follow what `parent` is the key of."""
        for row in self._rows.values():
            if row.domain == domain and row.text is not None and row.text.key == parent:
                row.write_down_tail(self._blocks)

    def filled(self, blocks: Ints) -> Ints:
        """How many tokens are computed in each, once the last step that was told has run."""
        creators = self._blocks.creators[blocks]
        filled = self._blocks.filled[blocks]
        for serial in set(creators.tolist()):
            row = self._by_serial.get(serial)
            if row is not None:
                filled[creators == serial] = self._computed(row, blocks[creators == serial])
        return filled

    def _computed(self, row: Row, own: Ints) -> Ints:
        size = self._tokens_per_block
        return np.clip(row.computed - self._blocks.indexes[own] * size, 0, size)
