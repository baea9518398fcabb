"""The shapes of what clients receive, as types: for the schemas that the catalog tells of.

Answers themselves pass as bytes and aren't built from these; tests hold the two together. A server
attached by URL may add to a choice what OpenAI documents there.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct


class PromptDetails(Struct):
    """Parts of the prompt's tokens."""

    cached_tokens: int = 0


class UsageObject(Struct):
    """Counts in the model's tokens: what is billed."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | None = None


class AnswerMessage(Struct):
    """The assistant's turn."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None = None


class Delta(Struct):
    """What a chunk adds to the assistant's turn."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class Choice(Struct):
    """What all kinds of choices have. `finish_reason` is null until the end of a stream."""

    index: int
    finish_reason: Literal["stop", "length"] | None
    logprobs: Any = None


class ChatChoice(Choice, kw_only=True):
    """The one choice of a chat."""

    message: AnswerMessage


class ChunkChoice(Choice, kw_only=True):
    """The one choice of a chat's chunk."""

    delta: Delta


class TextChoice(Choice, kw_only=True):
    """The one choice of a plain completion, or of a chunk of it."""

    text: str


class Answer(Struct, kw_only=True):
    """What all answers have."""

    id: str
    created: int  # unix seconds
    model: str
    usage: UsageObject | None = None  # of a stream: in its last chunk, if it was asked for


class ChatCompletion(Answer, kw_only=True):
    """The whole answer to a chat."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class ChatChunk(Answer, kw_only=True):
    """One event of a streamed chat."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]


class TextCompletion(Answer, kw_only=True):
    """A plain completion, whole or one event of a streamed one."""

    object: Literal["text_completion"]
    choices: list[TextChoice]


# Of each endpoint: the unstreamed answer, and one event of a stream.
ANSWERS: dict[str, tuple[type[Answer], type[Answer]]] = {
    "/v1/chat/completions": (ChatCompletion, ChatChunk),
    "/v1/completions": (TextCompletion, TextCompletion),
}
