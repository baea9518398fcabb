"""One request's text as it passes: the prompt, and the answer up to a bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.schema import NOT_JSON, Ask


class Tape:
    """What is kept of one request, at most `max_bytes` of its answer. Costs a list's append."""

    __slots__ = ("_left", "ask", "at_us", "is_cut", "parts", "tenant")

    def __init__(self, tenant: str, ask: Ask, at_us: int, max_bytes: int) -> None:
        self.tenant = tenant
        self.ask = ask
        self.at_us = at_us
        self.parts: list[bytes] = []
        self.is_cut = False
        self._left = max_bytes

    def add(self, data: bytes) -> None:
        """Bytes on their way to the client: events, or the whole body."""
        if self._left <= 0:
            self.is_cut = self.is_cut or bool(data)
            return
        if len(data) > self._left:
            data, self.is_cut = data[: self._left], True
        self._left -= len(data)
        self.parts.append(data)

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        ask = self.ask
        prompt = sum(len(turn.content) for turn in ask.messages or ()) + len(ask.prompt or ())
        return prompt + sum(map(len, self.parts)) + 512

    def document(self, fields: Mapping[str, Any], max_bytes: int) -> dict[str, Any]:
        """The line that is written. `fields` are those of the request's log line."""
        ask, cut = self.ask, self.is_cut
        asked = ask.engine_body()
        for name in ("messages", "prompt"):
            if len(msgspec.json.encode(asked.get(name))) > max_bytes:
                asked[name], cut = None, True
        return {
            "at_us": self.at_us,
            "request_id": fields.get("request_id"),
            "tenant": self.tenant,
            "key": fields.get("key"),
            "model": fields.get("model"),
            "operation": ask.operation,
            "status": fields.get("status"),
            "code": fields.get("code"),
            "outcome": fields.get("outcome"),
            "request": asked,
            "answer": said(b"".join(self.parts)),
            "is_cut": cut,
        }


def said(data: bytes) -> str:
    """The text of an answer's first choice: of its events, or of its whole body."""
    if not data.startswith(b"data:"):
        return _text_of(data)
    lines = (line[5:] for line in data.split(b"\n") if line.startswith(b"data:"))
    return "".join(map(_text_of, lines))


def _text_of(data: bytes) -> str:
    try:
        choice = msgspec.json.decode(data)["choices"][0]
    except (*NOT_JSON, KeyError, IndexError, TypeError):
        return ""  # the end of the stream, an error, or what the bound has cut through
    told = choice.get("delta") or choice.get("message") or {}
    return str(told.get("content") or choice.get("text") or "")
