"""One sequence on its way through the engine: its tokens, and the pages that hold their KV.

Told a request; never told what else runs. Beside each page of the block table stands the tag that
the page had when this seq got it: nothing re-reads a tag from the pool later.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import NamedTuple

from engines.api import EngineError, FinishReason, Request
from engines.embedded.drafts import Drafter

_serials = count(1)


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
    """`tokens` grows each time the model answers.

    KV of the first `num_computed` exists; that of the first `num_scheduled` exists or is on its way
    in a step that was launched. A step on its way may also be choosing the next token. Beyond
    `num_computed` there may lie KV of rejected drafts: it is written over before anybody reads it,
    and no page is sealed before all of its tokens are the seq's own.
    """

    request: Request
    tokens: list[int]
    serial: int = 0  # of its present life; 0 while waiting
    domain_slot: int = 0  # set while running; 0 belongs to no domain
    num_public_pages: int = 0  # leading pages of a prompt that was declared public
    public_slot: int = 0  # whose they are; set while running
    num_computed: int = 0
    num_scheduled: int = 0
    num_choosing: int = 0  # tokens that launched steps are still to yield, drafts apart
    num_drafted: int = 0  # drafts that a launched step computes: its length isn't known till then
    num_reused: int = 0  # tokens that were cached when its present life began
    num_cached: int = 0  # the same of its first life: what its owner is told
    num_shared_pages: int = 0
    num_sealed_pages: int = 0
    drafter: Drafter | None = None  # None if it never proposes drafts
    copied: Page | None = None  # its bytes begin this seq's last cached page; held until copied
    block_table: array[int] = field(default_factory=lambda: array("q"))
    tags: array[int] = field(default_factory=lambda: array("Q"))  # tags[i] of block_table[i]
    page_keys: list[bytes] = field(default_factory=list)  # content keys of full pages, in order
    phase: Phase = Phase.WAITING
    is_retry: bool = False  # it failed a check before its first token, and starts once more, cold
    is_resumed: bool = False  # it was preempted
    is_counted: bool = False  # in the engine's counters
    is_told: bool = False  # what was cached of it
    finish: FinishReason | None = None
    error: EngineError | None = None
    prompt_len: int = field(init=False)  # tokens of the prompt
    max_len: int = field(init=False)  # tokens it may reach, prompt included

    def __post_init__(self) -> None:
        self.prompt_len = len(self.request.prompt)
        self.max_len = self.prompt_len + self.request.sampling.max_tokens

    @classmethod
    def of(cls, request: Request, num_public_pages: int = 0, most_drafts: int = 0) -> Seq:
        """A seq that has done nothing yet. One whose tokens are drawn never proposes drafts."""
        seq = cls(request, list(request.prompt), num_public_pages=num_public_pages)
        if most_drafts and request.sampling.temperature == 0:
            seq.drafter = Drafter(most_drafts)
        return seq

    @property
    def num_unscheduled(self) -> int:
        """Tokens whose KV no step computes yet; 1 while decoding, 0 when all it may have is due.

        And 0 while drafts are on their way: what comes next isn't known before they have landed.
        """
        if self.num_drafted:
            return 0
        known = len(self.tokens) + self.num_choosing
        if self.num_choosing and known >= self.max_len:
            return 0
        return known - self.num_scheduled

    @property
    def has_answered(self) -> bool:
        """Whether a token has left."""
        return len(self.tokens) > self.prompt_len

    def slot_of(self, index: int) -> int:
        """The domain slot that the page at this place of the table must have."""
        return self.public_slot if index < self.num_public_pages else self.domain_slot

    def hold(self, page: Page) -> None:
        """Append a page to the block table, with its tag."""
        self.block_table.append(page.id)
        self.tags.append(page.tag)

    def pages(self) -> list[Page]:
        """The block table with its tags."""
        return [Page(id, tag) for id, tag in zip(self.block_table, self.tags, strict=True)]

    def begin(self, num_reused: int) -> None:
        """A new life, in which the first `num_reused` tokens need no computing."""
        self.serial = next(_serials)
        self.num_reused = self.num_computed = self.num_scheduled = num_reused
        if not self.is_resumed or self.is_retry:
            self.num_cached = num_reused
        self.phase = Phase.RUNNING

    def leave(self, phase: Phase) -> None:
        """The end of a life: it has no pages any more, and what is on its way for it is void."""
        self.serial = 0
        self.num_computed = self.num_scheduled = self.num_choosing = self.num_drafted = 0
        self.num_shared_pages = self.num_sealed_pages = 0
        del self.block_table[:]
        del self.tags[:]
        self.phase = phase

    def drafts(self, most: int, num_rows: int) -> tuple[int, ...]:
        """At most so many guesses of what follows; none while its newest token is being chosen.

        `num_rows` seqs run: see pace.
        """
        if self.drafter is None or self.num_choosing:
            return ()
        return self.drafter.drafts(self.tokens, min(most, self._draft_room), num_rows)

    def hope(self, num_rows: int) -> float:
        """Tokens that drafts may bring it, once the steps on their way have landed."""
        if self.drafter is None:
            return 0.0
        return self.drafter.hope(self.tokens, self._draft_room, num_rows)

    def next_chunk(self, num_tokens: int, drafts: tuple[int, ...] = ()) -> Chunk:
        """What the next step computes of it. The seq counts it as scheduled."""
        start = self.num_scheduled
        source = self.copied if start == self.num_reused else None
        self.num_scheduled += num_tokens
        samples = self.num_scheduled == len(self.tokens) + self.num_choosing
        self.num_choosing += samples
        self.num_scheduled += len(drafts)
        self.num_drafted = len(drafts)
        return Chunk(self, start, num_tokens + len(drafts), samples, self.serial, source, drafts)

    def take(self, chunk: Chunk, token_ids: Sequence[int]) -> int:
        """Append what a chunk yielded. The length up to which its KV is the seq's own."""
        self.tokens += token_ids
        self.num_choosing -= chunk.samples
        if not chunk.drafts:
            return chunk.context_len
        num_right = len(token_ids) - 1  # the last one is the model's alone: nobody computed its KV
        self.num_drafted = 0
        self.num_scheduled = chunk.context_len - len(chunk.drafts) + num_right
        return self.num_scheduled

    @property
    def _draft_room(self) -> int:
        """Drafts that may become tokens beside those that come anyway."""
        return self.max_len - len(self.tokens) - self.num_choosing - 1


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """What one step computes of one seq: `num_tokens` tokens from position `start`.

    `samples` says that it reaches the newest token, so that the step yields a next one. Its last
    tokens may be `drafts`: the step then yields a token more for each of them that is right.
    """

    seq: Seq
    start: int
    num_tokens: int
    samples: bool
    serial: int  # the seq's when the chunk was made
    source: Page | None = None  # copied over the page of `start` before that is written
    drafts: tuple[int, ...] = ()  # guesses of what follows the newest token

    @property
    def context_len(self) -> int:
        """Tokens that the last query of the chunk attends to, itself included."""
        return self.start + self.num_tokens

    @property
    def num_choices(self) -> int:
        """Last tokens of it after which the model's choice is asked."""
        return self.samples + len(self.drafts)

    @property
    def is_live(self) -> bool:
        """Whether the seq still waits for it: not ended, preempted or started anew since."""
        return self.serial == self.seq.serial
