"""A request as the ledger knows it: its blocks, and how far its tokens are computed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from engines.trtllm import salts
from engines.trtllm.blocks import NULL, SPOILED, Blocks, Ints
from engines.trtllm.texts import FullBlock, Text

_SERIALS = count()


class Scheduled(NamedTuple):
    """A request in TensorRT-LLM's SchedulerOutput: what its RequestData says."""

    request: int
    new_blocks: Sequence[int]  # appended to its list since it was last told; -1: no page
    computed_position: int  # tokens whose keys and values are there before this step
    num_tokens: int  # to be computed in this step
    new_tokens: Sequence[int] = ()  # of its text, since it was last told
    table: Sequence[int] | None = None  # its whole list as it is now, where that can be had


class Owner(NamedTuple):
    """Whose a row is. The salt itself isn't kept."""

    domain: int  # a hash that Python keys anew in each process; above 0
    salt: str | None  # its digest
    salt_id: str | None  # or TensorRT-LLM's number of it

    @classmethod
    def of(cls, salt: str | int | None) -> Owner:
        digest = salts.digest(salt) if isinstance(salt, str) else None
        number = f"{salt & 0xFFFFFFFFFFFFFFFF:016x}" if isinstance(salt, int) else None
        return cls(hash(f"{digest}/{number}") % (1 << 62) + 1, digest, number)


class Row:
    """Its blocks, each with the tag that it had when the row was given it."""

    __slots__ = (
        "_cells",
        "computed",
        "domain",
        "is_begun",
        "is_cut",
        "last_step",
        "num_blocks",
        "num_nulls",
        "num_shared",
        "owner",
        "prompt_length",
        "request",
        "serial",
        "text",
        "told",
        "was_computed",
    )  # one look into memory, where a dict of its own would be several

    def __init__(self, request: int, owner: Owner, computed: int, num_shared: int) -> None:
        self.request = request
        self.owner = owner
        self.domain = owner.domain  # of what it writes
        self.serial = next(_SERIALS)
        self.computed = computed  # tokens, once the last step that it was in has run
        self.was_computed = computed  # before that step
        self.num_shared = num_shared  # blocks at the front, hits, only to be read
        self.num_blocks = 0
        self.num_nulls = 0  # of them
        self.last_step = 0  # that it was in, or may be in
        self.is_begun = False  # has been in a step
        self.is_cut = False  # what it gains isn't told until it has more than its id ever had
        self.prompt_length = 0  # tokens, if they are known
        self.text: Text | None = None  # None: what it says isn't known
        self.told: set[str] = set()  # kinds of violation
        self._cells = np.full((2, 16), NULL, np.int64)  # blocks, and their tags

    @property
    def cells(self) -> Ints:
        """A view of two lines: its blocks, and what the tag of each must be."""
        return self._cells[:, : self.num_blocks]

    @property
    def blocks(self) -> Ints:
        """A view. NULL where there is no page, or none that could be looked up."""
        return self._cells[0, : self.num_blocks]

    def append(self, blocks: Ints, tags: Ints) -> None:
        """NULL has NULL for its tag."""
        end = self.num_blocks + len(blocks)
        if end > self._cells.shape[1]:
            grown = np.full((2, max(end, 2 * self.num_blocks)), NULL, np.int64)
            grown[:, : self.num_blocks] = self.cells
            self._cells = grown
        self._cells[0, self.num_blocks : end] = blocks
        self._cells[1, self.num_blocks : end] = tags
        self.num_nulls += int(np.count_nonzero(blocks == NULL))
        self.num_blocks = end

    def drop(self, indexes: Ints) -> None:
        """These pages of it are gone: a window has moved past them."""
        self._cells[:, indexes] = NULL
        self.num_nulls += len(indexes)

    def break_off(self, blocks: Blocks, tokens_per_block: int) -> None:
        """Its last step came to nothing: what that would have filled, of a prompt, is nobody's."""
        self.computed = self.was_computed
        own, size = self.own(blocks), tokens_per_block
        is_prompt = self.computed < self.prompt_length
        empty = blocks.indexes[own] * size + (size - 1 if is_prompt else 0) >= self.computed
        blocks.disown(own[empty])
        self.write_down_tail(blocks)  # whoever takes such a block over is known by what precedes it

    def condemn(self, blocks: Blocks) -> None:
        """It may have read what isn't its own: what it wrote, and will write, is nobody's."""
        if self.domain != SPOILED:
            self.domain = SPOILED
            blocks.disown(self.own(blocks))

    def write_down(self, blocks: Blocks, full: Sequence[FullBlock]) -> None:
        """What those of its own blocks hold that its text has filled."""
        for place, parent, tokens, key in full:
            if self._owns(blocks, place):
                blocks.say(int(self._cells[0, place]), parent, tokens, key)

    def write_down_tail(self, blocks: Blocks) -> None:
        """And the one that its text ends in, or goes on in."""
        if self.text is not None and self._owns(blocks, self.text.num_full):
            block = int(self._cells[0, self.text.num_full])
            blocks.say(block, self.text.key, self.text.tail)

    def _owns(self, blocks: Blocks, place: int) -> bool:
        """Whether it was given that block of its, and nobody else since."""
        if place >= self.num_blocks:
            return False
        return bool(blocks.creators[self._cells[0, place]] == self.serial)

    def own(self, blocks: Blocks) -> Ints:
        """The blocks that it was given, and not another since."""
        own: Ints = self.blocks[blocks.creators[self.blocks] == self.serial]
        return own
