"""Violations, gathered while the ledger looks."""

from __future__ import annotations

from dataclasses import dataclass

from engines.trtllm import violations as kinds
from engines.trtllm.blocks import Blocks, Ints
from engines.trtllm.rows import Row
from engines.trtllm.violations import Violation


@dataclass
class Counters:
    """Since the start."""

    steps: int = 0
    checked: int = 0  # blocks of scheduled rows, each step anew
    unproven: int = 0  # hits within a block of which it can't be said whose tokens they were
    violations: int = 0


class Teller:
    """Each kind once a row; and what such a row writes is no salt's from then on."""

    def __init__(self, blocks: Blocks, counters: Counters) -> None:
        self._blocks = blocks
        self.counters = counters
        self._told: list[Violation] = []

    def tell(self, row: Row, kind: str, block: int = -1) -> None:
        if kind in row.told:
            return
        row.told.add(kind)
        if kind != kinds.UNSALTED:
            row.condemn(self._blocks)
        step = max(row.last_step, self.counters.steps)
        owner = row.owner
        self._told.append(Violation(row.request, kind, block, step, owner.salt, owner.salt_id))

    def tell_of(self, row: Row, kind: str, blocks: Ints) -> None:
        """If there are any: of the first."""
        if len(blocks):
            self.tell(row, kind, int(blocks[0]))

    def take(self) -> list[Violation]:
        """What was told since it was last taken."""
        told, self._told = self._told, []
        self.counters.violations += len(told)
        return told
