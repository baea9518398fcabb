"""The boundary between an engine and whoever drives it: token ids in, token ids out.

An engine is told prompts as token ids, limits, and an opaque *domain*; it is never told text,
HTTP, tenants or money. Standard library only, so that every package may import it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class FinishReason(StrEnum):
    """Why a request ended, in OpenAI's words where they have one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class EngineError(Exception):
    """Base of all that an engine reports. `code` is stable and crosses process borders."""

    code = "engine_error"


class RequestRefused(EngineError):
    """The request can never run here: nothing was queued."""

    code = "invalid_request"


class ContextLengthExceeded(RequestRefused):
    """Prompt and answer together don't fit the model's context (or the whole page pool)."""

    code = "context_length_exceeded"


class KvIntegrityAbort(EngineError):
    """A page tag differed from the one recorded: this request was stopped before it read it."""

    code = "kv_integrity_abort"


class EngineRetiring(EngineError):
    """The engine takes no new request, since it is to be replaced; those that run go on."""

    code = "draining"


class EngineFailed(EngineError):
    """The engine itself broke; it answers nothing any more and must be replaced."""

    code = "engine_failed"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. Temperature 0 is greedy; `seed` fixes the draw of each position."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate. Cached pages are shared inside `domain` and nowhere else."""

    id: str
    domain: str
    prompt: tuple[int, ...]
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Output:
    """What one step produced for one request.

    `token_ids` includes the end-of-turn token when the model chose it. `cached_tokens` is set once,
    when the request is admitted (which may be an output without tokens): prompt tokens whose pages
    were reused. `error` is set exactly when `finish` is ERROR.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    finish: FinishReason | None = None
    cached_tokens: int | None = None
    error: EngineError | None = None


@dataclass(frozen=True, slots=True)
class Stats:
    """Gauges and counters of one engine since it started. Pages are physical."""

    waiting: int = 0
    running: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    drafted_tokens: int = 0  # guesses that were computed, see the option `speculation`
    accepted_tokens: int = 0  # of them, those that were right: they are output tokens, too
    aborted: int = 0
    pages: Mapping[str, int] = field(default_factory=dict)  # state -> count
    preempted: int = 0
    tag_pages_checked: int = 0
    tag_check_s: float = 0.0
    tag_mismatches: int = 0
    mismatches: Mapping[str, int] = field(default_factory=dict)  # "phase/kind" -> count
    integrity_retries: int = 0
    integrity_aborts: int = 0
    integrity_aborts_streamed: int = 0  # of them, those whose first token had left
    scrubbed: Mapping[str, int] = field(default_factory=dict)  # what was looked at, and found
    limbo_age_s: float = 0.0  # of the page that has been given up longest, and isn't free yet
    retirement: str = ""  # see Engine.retirement


@dataclass(frozen=True, slots=True)
class DomainPages:
    """The pages of one domain, which is told by its first letters alone.

    Ages are seconds since a page came into its state.
    """

    domain: str
    pages: Mapping[str, int]  # state -> count
    youngest_s: float
    oldest_s: float


@dataclass(frozen=True, slots=True)
class PageMap:
    """Where the pages of a pool are at one moment: states and owners, never content.

    `states` has a letter a page, the first of its state's name; `owners` a number a page, the place
    of its domain in `domains`, or -1. Pages are in the order of their numbers, from 1.
    """

    page_size: int  # tokens
    pages: Mapping[str, int]  # state -> count
    states: str
    owners: Sequence[int]
    domains: Sequence[DomainPages]
    pinned: int  # pages that a transfer may still touch
    limbo_age_s: float  # of the page that has been given up longest, and isn't free yet
    launched_step: int
    completed_step: int
    generation: int  # how many tags there have been


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A fault that can be planted in an engine, and the layer that must notice it."""

    kind: str
    number: str
    layer: str
    what: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat, already reduced to text."""

    role: str
    content: str


class Decoder(Protocol):
    """Turns one request's tokens into text, never splitting a character."""

    def push(self, token_id: int) -> str:
        """Text that this token completes: "" inside a character and for control tokens."""
        ...

    def flush(self) -> str:
        """What was left unfinished when the request ended, with U+FFFD for broken bytes."""
        ...


class PromptEncoder(Protocol):
    """Plain prompts to ids, as a model's own server would; texts are trusted with nothing."""

    def encode_prompt(self, text: str) -> list[int]:
        """Raises RequestRefused for what isn't Unicode."""
        ...


class Tokenizer(Protocol):
    """Text to ids and back. Control tokens written in user text are encoded as plain text."""

    longest_token_chars: int  # no token stands for more characters: bounds a text's ids from below

    def encode(self, text: str) -> list[int]: ...

    def encode_prompt(self, text: str) -> list[int]:
        """A whole plain prompt: after what the model wants before any text, if anything."""
        ...

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Render the model's chat template, with the opening of the assistant's turn."""
        ...

    def decoder(self) -> Decoder: ...


class Engine(Protocol):
    """One model. Driven from one thread: `add` and `abort` between calls of `step`."""

    tokenizer: Tokenizer
    max_context_tokens: int  # prompt and answer of one request together

    @property
    def retirement(self) -> str:
        """Why this engine should be drained and replaced; "" while it needn't be."""
        ...

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestRefused if it can never run, or EngineRetiring."""
        ...

    def abort(self, request_id: str) -> None:
        """Forget a request and free its pages. Unknown or ended ids are fine: nothing follows."""
        ...

    def has_work(self) -> bool: ...

    def step(self) -> list[Output]:
        """Run one batch. Raises EngineFailed when the engine can't go on."""
        ...

    def tend(self) -> None:
        """Look after itself for a moment: called now and then while there is no work."""
        ...

    def stats(self) -> Stats: ...

    def pages(self) -> PageMap | None:
        """Every page of its pool, as of now; None if it has none."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What a factory needs to build an engine. `options` are the engine's own."""

    model: str
    path: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine is as configured, for a catalog. 0 and "" mean: not known, or nothing to say.

    `context_length` is in tokens, prompt and answer together.
    """

    context_length: int = 0
    backend: str = ""  # what computes, where that can be chosen
    dtype: str = ""
    kv_dtype: str = ""
    integrity: str = ""
    quantization: str = ""  # of the weights, as the checkpoint says
