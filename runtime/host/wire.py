"""A host's wire format: OpenAI's requests in, OpenAI's answers and chunks out.

The gateway has already checked what a client sent; a host checks again what it relies on, since
whoever holds its socket can write to it.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from engines.api import Message, Sampling
from runtime.host.answer import Piece
from runtime.wire import output_comment

MAX_TOKENS = 2**31 - 1
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]


class Turn(Struct, forbid_unknown_fields=True):
    """One message; its content is text by the time it gets here."""

    role: str
    content: str


class HostRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """What a host is asked: a chat (`messages`) or a completion (`prompt`: text or ids)."""

    model: str
    messages: Annotated[list[Turn], Meta(min_length=1)] | None = None
    prompt: str | list[TokenId] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: list[str] = []
    stream: bool = False

    def turns(self) -> list[Message]:
        """The chat as the tokenizer takes it."""
        return [Message(turn.role, turn.content) for turn in self.messages or []]

    def num_chars(self) -> int:
        """Characters of all the text that came."""
        if self.messages is not None:
            return sum(len(turn.content) for turn in self.messages)
        return len(self.prompt or "")

    def sampling(self, max_tokens: int, seed: int) -> Sampling:
        """The sampling parameters, with the two numbers that only the host can settle."""
        return Sampling(max_tokens, self.temperature, self.top_p, seed)


decode_request = msgspec.json.Decoder(HostRequest).decode
encode = msgspec.json.Encoder().encode


class AnswerEncoder:
    """Encodes one answer, as chat or as plain completion. `id` and `model` are the gateway's."""

    def __init__(self, *, chat: bool, answer_id: str, model: str, created: int) -> None:
        self._chat = chat
        kind = "chat.completion" if chat else "text_completion"
        self._head = {"id": answer_id, "object": kind, "created": created, "model": model}
        self._chunk_head = self._head | ({"object": "chat.completion.chunk"} if chat else {})

    def opening(self) -> bytes:
        """A chat stream's first chunk names the role; plain completions have none."""
        if not self._chat:
            return b""
        return self._frame({"role": "assistant", "content": ""}, None)

    def piece(self, piece: Piece) -> bytes:
        """The frame(s) of one piece, with its running count."""
        finish = piece.finish.value if piece.finish else None
        if not self._chat:
            return output_comment(piece.output_tokens) + self._frame(piece.text, finish)
        frames = b""
        if piece.text:
            frames = output_comment(piece.output_tokens) + self._frame(
                {"content": piece.text}, None
            )
        if finish:
            frames += output_comment(piece.output_tokens) + self._frame({}, finish)
        return frames

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The last chunk, which holds no choice."""
        return b"data: " + encode(self._chunk_head | {"choices": [], "usage": usage}) + b"\n\n"

    def whole(self, text: str, finish: str, usage: dict[str, Any]) -> bytes:
        """The unstreamed body."""
        choice: dict[str, Any] = {"index": 0}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        choice |= {"logprobs": None, "finish_reason": finish}
        return encode(self._head | {"choices": [choice], "usage": usage})

    def _frame(self, delta: dict[str, str] | str, finish: str | None) -> bytes:
        field = "delta" if self._chat else "text"
        choice = {"index": 0, field: delta, "logprobs": None, "finish_reason": finish}
        return b"data: " + encode(self._chunk_head | {"choices": [choice]}) + b"\n\n"


def usage_object(prompt: int, cached: int, output: int) -> dict[str, Any]:
    """OpenAI's usage object; cached tokens are part of the prompt's."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def error_object(code: str, message: str) -> dict[str, Any]:
    """OpenAI's error object."""
    kind = "server_error" if code in SERVER_CODES else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


SERVER_CODES = frozenset({"engine_error", "engine_failed", "kv_integrity_abort", "draining"})
