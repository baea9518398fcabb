"""An engine's error becomes one of ours: by its code, else by its status.

The client is told its request's own faults in full; what is wrong between us and an engine is for
the operator's log.
"""

from __future__ import annotations

import re

from gateway.errors import (
    BadRequest,
    ContextTooLong,
    IntegrityAbort,
    Internal,
    Refusal,
    Unavailable,
    UpstreamFailed,
)

# vLLM, SGLang and TensorRT-LLM have no code for it.
_TOO_LONG = re.compile(
    r"context (length|size|window)|maximum model length|max_(seq_len|num_tokens|model_len)", re.I
)
BY_CODE: dict[str, type[Refusal]] = {
    "context_length_exceeded": ContextTooLong,
    "exceed_context_size_error": ContextTooLong,
    "kv_integrity_abort": IntegrityAbort,
    "draining": Unavailable,
    "capability_refused": Internal,
    "engine_failed": UpstreamFailed,
    "engine_error": UpstreamFailed,
    "invalid_request": BadRequest,
}


def is_too_long(message: str) -> bool:
    """Whether an engine says that a prompt, and its answer, are more than it holds."""
    return _TOO_LONG.search(message) is not None


def refusal_of(code: str, message: str, status: int = 500, *, param: str | None = None) -> Refusal:
    """An engine's error as ours. `param` is the field that it is about, if it is the request's."""
    if kind := BY_CODE.get(code):
        return kind(_told(kind, message), param=param if issubclass(kind, BadRequest) else None)
    if status in (400, 413, 422):
        if is_too_long(message):
            return ContextTooLong(message, param=param)
        return BadRequest(
            f"the engine refused the request: {message or 'it did not say why'}", param=param
        )
    if status in (429, 503):
        return Unavailable("the engine is at its capacity; try again")
    return UpstreamFailed("the engine failed; try again")


OURS: dict[type[Refusal], str] = {
    IntegrityAbort: "the request was stopped because its cache could not be verified; try again",
    Unavailable: "the engine is stopping; try again",
    UpstreamFailed: "the engine failed; try again",
    Internal: "the engine did not accept the gateway's capability",
}


def _told(kind: type[Refusal], message: str) -> str:
    """What the client is told: a request's own faults in full, ours without details."""
    return OURS.get(kind) or message or "the engine refused the request"
