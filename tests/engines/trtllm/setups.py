"""How a simulated TensorRT-LLM is set up, and a request to it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Setup:
    """How TensorRT-LLM is set up; the first of each pair is what `bulkhead check` lets pass."""

    num_blocks: int = 72
    size: int = 4  # tokens a block
    batch: int = 6
    chunk: int = 1000  # tokens of a prompt a step
    reuses: bool = True
    partial: bool = False
    shares_at_once: bool = False  # a prompt is in the tree before the step that computes it
    overlaps: bool = False
    pauses: bool = False  # MAX_UTILIZATION instead of GUARANTEED_NO_EVICT
    tells_cancels: bool = False  # as versions did before 1.2
    window: int = 0  # blocks that a row keeps; the others become -1
    tables: bool = False  # whether the connector can have whole lists


@dataclass(eq=False)
class Request:
    id: int
    salt: str
    prompt: list[int]
    length: int  # tokens in all, at its end
    all: list[int] = field(default_factory=list)  # its tokens, known or not
    texts: list[int] = field(default_factory=list)  # each with all before it, as a number
    reused: int = 0  # tokens that were there when it got its blocks
    known: int = 0  # tokens that the loop has heard of
    position: int = 0  # tokens that are in its blocks
    has_blocks: bool = False
    is_over: bool = False
    run: int = 0  # goes up when it is paused: what it computed before isn't heard any more

    @property
    def is_prefilling(self) -> bool:
        return self.position < len(self.prompt)

    def say(self, token: int) -> None:
        self.texts.append(hash((self.texts[-1] if self.texts else 0, token)))
        self.all.append(token)
