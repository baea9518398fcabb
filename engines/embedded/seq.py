"""One sequence on its way through the engine: its tokens, and the pages that hold their KV.

Told a request; never told what else runs. Beside each page of the block table stands the tag that
the page had when this seq got it: nothing re-reads a tag from the pool later.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from engines.api import EngineError, FinishReason, Request


class Page(NamedTuple):
    """A page as its holder knows it: where it is, and its tag at that time."""

    id: int
    tag: int


class Phase(Enum):
    """Where a seq stands."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Seq:
    """`tokens` grows by one each time the model answers; KV of the first `num_computed` exists."""

    request: Request
    tokens: list[int]
    domain_slot: int = 0  # set while running; 0 belongs to no domain
    num_computed: int = 0
    num_cached: int = 0  # prompt tokens whose pages were shared at admission
    num_sealed_pages: int = 0
    block_table: list[int] = field(default_factory=list)
    tags: list[int] = field(default_factory=list)  # tags[i] belongs to block_table[i]
    page_keys: list[bytes] = field(default_factory=list)  # content keys of full pages, in order
    phase: Phase = Phase.WAITING
    finish: FinishReason | None = None
    error: EngineError | None = None

    @classmethod
    def of(cls, request: Request) -> Seq:
        """A seq that has done nothing yet."""
        return cls(request, list(request.prompt))

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def max_len(self) -> int:
        """Tokens it may reach, prompt included."""
        return self.prompt_len + self.request.sampling.max_tokens

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose KV is still missing; 1 while decoding."""
        return len(self.tokens) - self.num_computed

    def hold(self, page: Page) -> None:
        """Append a page to the block table, with its tag."""
        self.block_table.append(page.id)
        self.tags.append(page.tag)

    def pages(self) -> list[Page]:
        """The block table with its tags."""
        return [Page(id, tag) for id, tag in zip(self.block_table, self.tags, strict=True)]


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one step computes of one seq: its next `num_tokens` tokens."""

    seq: Seq
    num_tokens: int

    @property
    def context_len(self) -> int:
        """Tokens that the last query of the chunk attends to, itself included."""
        return self.seq.num_computed + self.num_tokens

    @property
    def samples(self) -> bool:
        """Whether the chunk reaches the newest token, so that the step yields a next one."""
        return self.context_len == len(self.seq.tokens)
