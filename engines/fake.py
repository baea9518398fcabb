"""A whole engine without torch: for tests of the gateway and the runtime, and for demos.

It answers a prompt with the prompt's own tokens, over and over: what comes back is known, every
token is counted, and cached prefixes are per domain, in whole pages, as the real engine's are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engines.api import (
    ContextLengthExceeded,
    EngineFacts,
    EngineFailed,
    EngineRetiring,
    EngineSpec,
    FinishReason,
    KvIntegrityAbort,
    Message,
    Output,
    PageMap,
    Request,
    RequestRefused,
    Stats,
)

PAGE_SIZE = 16
MAX_CONTEXT_TOKENS = 8192


class ByteDecoder:
    """Bytes to text; a character leaves when its last byte is there."""

    def __init__(self) -> None:
        self._pending = b""

    def push(self, token_id: int) -> str:
        """See engines.api.Decoder."""
        self._pending += bytes([token_id])
        try:
            text = self._pending.decode()
        except UnicodeDecodeError as fault:
            if fault.reason == "unexpected end of data":
                return ""
            text = self._pending.decode(errors="replace")
        self._pending = b""
        return text

    def flush(self) -> str:
        """See engines.api.Decoder."""
        text, self._pending = self._pending.decode(errors="replace"), b""
        return text


class ByteTokenizer:
    """One token a byte of UTF-8. A chat is its last message."""

    longest_token_chars = 1

    def encode(self, text: str) -> list[int]:
        """See engines.api.Tokenizer."""
        return list(text.encode())

    def encode_prompt(self, text: str) -> list[int]:
        """The same: nothing stands before it."""
        return self.encode(text)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """See engines.api.Tokenizer."""
        return self.encode(messages[-1].content)

    def decoder(self) -> ByteDecoder:
        """See engines.api.Tokenizer."""
        return ByteDecoder()


COUNTS = (
    "steps",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "aborted",
    "integrity_aborts",
    "integrity_aborts_streamed",
)


@dataclass(slots=True)
class Running:
    """One request in progress."""

    request: Request
    done: int = 0
    admitted: bool = False


@dataclass(slots=True)
class FakeEngine:
    """See the module. `step_s` is how long a step takes. With `faults`, prompts that begin with
    `integrity`, `engine` (the engine fails) or `exit` (the process ends) end as they say; one that
    begins with `retire` is answered, and has the engine ask to be replaced.

    A start takes `start_s`, holds `held_bytes` of real memory, and fails while `fail_file` exists.
    """

    max_context_tokens: int = MAX_CONTEXT_TOKENS
    step_s: float = 0.0
    max_running: int = 64
    faults: bool = False
    start_s: float = 0.0
    held_bytes: int = 0
    fail_file: str = ""
    tokenizer: ByteTokenizer = field(default_factory=ByteTokenizer)
    _requests: dict[str, Running] = field(default_factory=dict)
    _cache: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)
    _counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    _held: bytes = b""
    _retirement: str = ""

    def __post_init__(self) -> None:
        time.sleep(self.start_s)
        if self.fail_file and os.path.exists(self.fail_file):
            raise EngineFailed(f"told to fail by {self.fail_file}")
        self._held = b"\1" * self.held_bytes  # not zeros, which would take no memory

    @property
    def retirement(self) -> str:
        """See engines.api.Engine."""
        return self._retirement

    def add(self, request: Request) -> None:
        """See engines.api.Engine."""
        if self._retirement:
            raise EngineRetiring(f"this engine is being replaced: {self._retirement}")
        if not request.prompt:
            raise RequestRefused("the prompt is empty")
        if not all(0 <= token <= 255 for token in request.prompt):
            raise RequestRefused("the prompt holds a token outside 0..255")
        if len(request.prompt) + request.sampling.max_tokens > self.max_context_tokens:
            raise ContextLengthExceeded(f"more than {self.max_context_tokens} tokens")
        self._requests[request.id] = Running(request)

    def abort(self, request_id: str) -> None:
        """See engines.api.Engine."""
        if self._requests.pop(request_id, None):
            self._counts["aborted"] += 1

    def tend(self) -> None:
        """Nothing of it needs looking after."""

    def has_work(self) -> bool:
        """See engines.api.Engine."""
        return bool(self._requests)

    def step(self) -> list[Output]:
        """One token for each of the oldest `max_running` requests."""
        time.sleep(self.step_s)
        self._counts["steps"] += 1
        running = list(self._requests.values())[: self.max_running]
        return [self._advance(one) for one in running]

    def _advance(self, one: Running) -> Output:
        request, cached = one.request, None
        if not one.admitted:
            one.admitted, cached = True, self._admit(request)
        elif self.faults and one.done >= 3:
            self._fail(request)
        token = request.prompt[one.done % len(request.prompt)]
        one.done += 1
        self._counts["output_tokens"] += 1
        finish = FinishReason.LENGTH if one.done == request.sampling.max_tokens else None
        if finish:
            self._requests.pop(request.id)
        if self.faults and one.done > 3 and bytes(request.prompt).startswith(b"integrity"):
            self._requests.pop(request.id, None)
            self._counts["integrity_aborts"] += 1
            self._counts["integrity_aborts_streamed"] += 1
            error = KvIntegrityAbort("a page tag differed from the one recorded")
            return Output(request.id, finish=FinishReason.ERROR, error=error)
        return Output(request.id, (token,), finish, cached)

    def _fail(self, request: Request) -> None:
        prompt = bytes(request.prompt)
        if prompt.startswith(b"engine"):
            raise EngineFailed("told to fail")
        if prompt.startswith(b"exit"):
            os._exit(9)
        if prompt.startswith(b"retire"):
            self._retirement = "told to retire"

    def _admit(self, request: Request) -> int:
        pages = [request.prompt[:end] for end in range(PAGE_SIZE, len(request.prompt), PAGE_SIZE)]
        hits = 0
        while hits < len(pages) and (request.domain, pages[hits]) in self._cache:
            hits += 1
        self._cache.update((request.domain, page) for page in pages)
        self._counts["prompt_tokens"] += len(request.prompt)
        self._counts["cached_tokens"] += hits * PAGE_SIZE
        return hits * PAGE_SIZE

    def stats(self) -> Stats:
        """See engines.api.Engine."""
        counts: dict[str, Any] = dict(self._counts)
        return Stats(running=len(self._requests), retirement=self._retirement, **counts)

    def pages(self) -> PageMap | None:
        """See engines.api.Engine: it keeps nothing in pages."""
        return None

    def close(self) -> None:
        """See engines.api.Engine."""
        self._requests.clear()


MINIMA: dict[str, Any] = {
    "max_context_tokens": 1,
    "step_s": 0.0,
    "max_running": 1,
    "faults": False,
    "start_s": 0.0,
    "held_bytes": 0,
    "fail_file": "",
}
OVERHEAD_BYTES = 64 * 1024 * 1024  # interpreter and HTTP: 45 MB as measured


def faults(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with this engine's options."""
    for name, value in (settings.get("options") or {}).items():
        minimum = MINIMA.get(name)
        if minimum is None:
            yield f"options.{name}", f"unknown; known: {', '.join(MINIMA)}"
        elif not _is_good(value, minimum):
            least = f", {minimum} or more" if minimum != "" else ""
            yield f"options.{name}", f"expected {type(minimum).__name__}{least}"


def _is_good(value: Any, minimum: Any) -> bool:
    kinds = (int, float) if type(minimum) is float else (type(minimum),)
    return type(value) in kinds and bool(value >= minimum)


def memory_bytes(path: str, options: Mapping[str, Any]) -> int:
    """What a process with this engine takes."""
    return OVERHEAD_BYTES + int(options.get("held_bytes", 0))


def facts(path: str, options: Mapping[str, Any]) -> EngineFacts:
    """What this engine is as configured: its context alone."""
    context: int = options.get("max_context_tokens", MAX_CONTEXT_TOKENS)
    return EngineFacts(context_length=context)


def create(spec: EngineSpec) -> FakeEngine:
    """The registry's factory."""
    options: dict[str, Any] = dict(spec.options)
    return FakeEngine(**options)
