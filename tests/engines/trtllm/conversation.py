"""What our readers make of a recorded conversation with a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gateway.errors import IntegrityAbort
from gateway.prices import Usage
from gateway.relay.sse import BadFrame, Splitter
from gateway.relay.trtllm import Shape, told_of_body, trt_reader
from gateway.relay.whole import read_whole

Said = dict[str, dict[str, Any]]  # an answer by the name of what was asked


def unread(said: Said) -> Iterator[str]:
    """What isn't read as it must be."""
    yield from _answers(said)
    yield from _streams(said)
    yield from _prefixes(said)
    yield from _refusals(said)


def _answers(said: Said) -> Iterator[str]:
    for name in ("chat", "chat_stopped", "token_ids", "completion"):
        usage = _whole(said[name])
        if usage is None:
            yield f"{name}: no answer is read of it, status {said[name]['status']}"
        elif not 0 < usage.output_tokens <= 32:
            yield f"{name}: {usage.output_tokens} tokens"


def _streams(said: Said) -> Iterator[str]:
    for name in ("chat_stream", "chat_counting"):
        if not _streamed(said[name]):
            yield f"{name}: no whole stream is read of it"


def _prefixes(said: Said) -> Iterator[str]:
    again, other = _whole(said["salt_again"]), _whole(said["salt_other"])
    if again and other and again.cached_input_tokens <= other.cached_input_tokens:
        yield "salts: another salt finds as much in the cache as its own"
    ids = _whole(said["token_ids"])
    if ids and ids.input_tokens != 4:
        yield f"token_ids: a prompt of {ids.input_tokens} tokens, not of 4"


def _refusals(said: Said) -> Iterator[str]:
    for name in ("completion_salted", "unknown_field", "wrong_type"):
        if said[name]["status"] != 400:
            yield f"{name}: {said[name]['status']}, not 400"
        elif "Say hello" in told_of_body(json.loads(said[name]["text"]).get("error") or ""):
            yield f"{name}: what is told of it quotes the prompt"


def _whole(answer: dict[str, Any]) -> Usage | None:
    if answer["status"] != 200:
        return None
    sent_as = "chat" if "chat" in answer["path"] else "completion"
    try:
        shape = Shape(sent_as, is_whole=True)  # type: ignore[arg-type]
        shape(json.loads(answer["text"]))
        return read_whole(answer["text"].encode()).usage
    except (BadFrame, IntegrityAbort, ValueError):
        return None


def _streamed(answer: dict[str, Any]) -> bool:
    read = trt_reader("id", "m", Shape("chat"), is_salted=True)
    frames = [read(event) for event in Splitter().push(answer["text"].encode())]
    usages = [frame.usage for frame in frames if frame.usage]
    is_well = not any(frame.error for frame in frames)
    return is_well and bool(usages) and bool(frames) and frames[-1].done
