"""Server-sent events between engine and client: bytes to frames, and what each frame says.

Frames are cut at blank lines and passed on as bytes. Our own hosts' frames are read with byte
searches alone; another server's are parsed, since their ids and model name must become ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from gateway.prices import Usage
from gateway.schema import NOT_JSON
from runtime.wire import Counts, parse_comment

MAX_FRAME_BYTES = 1024 * 1024


class BadFrame(Exception):
    """The upstream wrote what isn't an event stream of chat chunks."""


@dataclass(slots=True)
class Frame:
    """One event. `data` is for the client now; `tail` only once the usage in it is settled.

    `counts` is what our hosts count along; `usage`, `finish_reason` and `error` are set on the
    frames that carry them; `has_content` says that another server's frame holds text. After one
    that `begins_anew`, nothing counts that was told before it.
    """

    data: bytes = b""
    tail: bytes = b""
    counts: Counts | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
    error: tuple[str, str] | None = None  # (code, message)
    has_content: bool = False
    done: bool = False
    begins_anew: bool = False


Read = Callable[[bytes], Frame]
Reshape = Callable[[dict[str, Any]], dict[str, Any]]

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Splitter:
    """Cuts a byte stream into events, whatever its chunks were."""

    def __init__(self) -> None:
        self._rest = b""

    def push(self, chunk: bytes) -> list[bytes]:
        """The events completed by this chunk, each without its closing blank line."""
        data = self._rest + chunk
        # `find` is quicker than `in`, which takes what it looks for for a number first.
        if data.find(b"\r") >= 0:  # a CR at the very end may be half of a CRLF: it waits
            held = b"\r" if data.endswith(b"\r") else b""
            data = (
                data[: len(data) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + held
            )
        *events, self._rest = data.split(b"\n\n")
        if len(self._rest) > MAX_FRAME_BYTES:
            raise BadFrame("an event of over a mebibyte")
        return events if all(events) else [event for event in events if event]

    def flush(self) -> bytes:
        """What stands after the last blank line, once the stream has ended."""
        rest, self._rest = self._rest.strip(b"\r\n"), b""
        return rest


def read_native(event: bytes) -> Frame:
    """A frame of our own host: comments with counts are stripped, the rest passes as it is."""
    counts = None
    while event.startswith(b":"):
        comment, _, event = event.partition(b"\n")
        counts = parse_comment(comment)
    if not event:
        return Frame(counts=counts)
    if event == b"data: [DONE]":
        return Frame(done=True)
    frame = Frame(event + b"\n\n", counts=counts)
    if b'"usage":{' in event:  # never inside text: quotes are escaped there
        frame.usage = _usage(msgspec.json.decode(event[6:])["usage"])
        frame.data, frame.tail = b"", frame.data
    elif event.startswith(b'data: {"error":'):
        frame.error = read_error(msgspec.json.decode(event[6:])["error"])
    elif (at := event.find(b'"finish_reason":"')) >= 0:
        frame.finish_reason = event[at + 17 : event.index(b'"', at + 17)].decode()
    return frame


def foreign_reader(
    answer_id: str, model: str, *, is_salted: bool = True, reshape: Reshape | None = None
) -> Read:
    """Reads another server's frames, giving them our id and model name. See `told_usage`.

    `reshape` makes OpenAI's chunks of a server's own.
    """

    def read(event: bytes) -> Frame:
        data = _data_of(event)
        if data is None:
            return Frame()
        if data == b"[DONE]":
            return Frame(done=True)
        chunk = _object(data)
        if chunk.get("error"):
            return Frame(error=read_error(chunk["error"]))
        if chunk.get("object") == "error":  # with the error's fields beside it
            return Frame(error=read_error(chunk))
        if reshape is not None:
            chunk = reshape(chunk)
        return _foreign_frame(chunk, answer_id, model, is_salted)

    return read


CHUNK_FIELDS = ("object", "created", "choices")
USAGE_FIELDS = (
    *("prompt_tokens", "completion_tokens", "total_tokens"),
    *("prompt_tokens_details", "completion_tokens_details"),
)


class _Choice(Struct):
    """What is read of another server's choice."""

    delta: dict[str, Any] | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Chunk(Struct):
    """What is read of another server's chunk."""

    choices: list[_Choice] | None = None
    usage: dict[str, Any] | None = None


def _foreign_frame(chunk: dict[str, Any], answer_id: str, model: str, is_salted: bool) -> Frame:
    try:
        known = msgspec.convert(chunk, _Chunk)
    except msgspec.ValidationError as fault:
        raise BadFrame(f"a chunk of another shape: {fault}") from None
    usage = told_usage(known.usage, is_salted=is_salted) if known.usage else None
    frame = Frame(usage=None if usage is None else _usage(usage))
    for choice in known.choices or ():
        frame.finish_reason = choice.finish_reason or frame.finish_reason
        if not frame.has_content:
            frame.has_content = bool(choice.text) or _has_content(choice.delta)
    body: dict[str, Any] = {"id": answer_id, "model": model}
    for name in CHUNK_FIELDS:
        if name in chunk:
            body[name] = chunk[name]
    if known.choices:
        frame.data = _event(body)
    if usage is not None:
        frame.tail = _event(body | {"choices": [], "usage": usage})
    return frame


def _has_content(delta: dict[str, Any] | None) -> bool:
    """Whether it holds more than who speaks."""
    for name, value in (delta or {}).items():  # noqa: SIM110 - quicker so
        if value and name != "role":
            return True
    return False


def _event(body: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % _encode(body)


def _data_of(event: bytes) -> bytes | None:
    """The event's data lines, joined; None for comments and other fields."""
    if event.startswith(b"data:") and event.find(b"\n") < 0:  # nearly all
        return event[5:].lstrip(b" ")
    lines = [line[5:].lstrip(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = _decode(data)
    except NOT_JSON:
        raise BadFrame("a chunk that isn't JSON") from None
    if not isinstance(found, dict):
        raise BadFrame("a chunk that isn't an object")
    return found


def told_usage(usage: dict[str, Any], *, is_salted: bool) -> dict[str, Any]:
    """OpenAI's fields of another server's usage object.

    A server that isn't sent a salt of each tenant's has one cache for them all. What it found there
    may be another's, so it counts as not cached: for the client, and for the bill.
    """
    told = {name: usage[name] for name in USAGE_FIELDS if name in usage}
    if not is_salted and told.get("prompt_tokens_details"):
        told["prompt_tokens_details"] = {"cached_tokens": 0}
    return told


def read_usage(usage: object) -> Usage | None:
    """OpenAI's usage object; None if it isn't one. Zero is a count, not an absence."""
    return _usage(usage) if isinstance(usage, dict) and usage else None


class _Details(Struct):
    cached_tokens: int | None = None


class _UsageObject(Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


def _usage(usage: dict[str, Any]) -> Usage:
    try:
        found = msgspec.convert(usage, _UsageObject)
        details = found.prompt_tokens_details or _Details()
        return Usage(found.prompt_tokens, details.cached_tokens or 0, found.completion_tokens)
    except (msgspec.ValidationError, ValueError) as fault:
        raise BadFrame(f"a usage object that can't be: {fault}") from None


def error_of(body: bytes) -> tuple[str, str]:
    """(code, message) of an error's body, in whichever shape it is."""
    try:
        found = msgspec.json.decode(body)
    except NOT_JSON:
        found = None
    error = found.get("error") if isinstance(found, dict) else None
    # some servers write the error's fields at the top, without an `error` around them
    return read_error(error or found or {})


def read_error(error: object) -> tuple[str, str]:
    """(code, message) of an OpenAI error object, or of whatever stands in its place."""
    if not isinstance(error, dict):
        return "upstream_error", str(error)[:200]
    code, kind = error.get("code"), error.get("type")
    if not isinstance(code, str) and isinstance(kind, str):
        code = kind  # some write the status as the code
    return str(code or kind or "upstream_error"), str(error.get("message", ""))[:500]
