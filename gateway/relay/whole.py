"""An unstreamed answer: the body for the client, and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.prices import Usage
from gateway.relay.sse import BadFrame, Reshape, read_usage, told_usage
from gateway.schema import NOT_JSON

ANSWER_FIELDS = ("object", "created", "choices", "usage")


@dataclass(frozen=True, slots=True)
class Whole:
    """The body, its usage if it tells any, and why it ended."""

    body: bytes
    usage: Usage | None
    finish_reason: str | None


def read_whole(
    body: bytes,
    ours: dict[str, str] | None = None,
    *,
    is_salted: bool = True,
    reshape: Reshape | None = None,
) -> Whole:
    """Read an engine's answer. Raises BadFrame if it isn't one.

    Another server's gets what is `ours` (id and model name), and keeps OpenAI's fields alone;
    for `is_salted` see `told_usage`. `reshape` makes OpenAI's answer of a server's own.
    """
    try:
        answer: dict[str, Any] = msgspec.json.decode(body)
        if reshape is not None:
            answer = reshape(answer)
        finish = answer["choices"][0]["finish_reason"]
    except (*NOT_JSON, KeyError, IndexError, TypeError):
        raise BadFrame("not a completion") from None
    if not isinstance(finish, str | None):
        raise BadFrame("a finish reason that isn't text")
    if ours is not None:
        if isinstance(usage := answer.get("usage"), dict) and usage:
            answer["usage"] = told_usage(usage, is_salted=is_salted)
        theirs = {name: answer[name] for name in ANSWER_FIELDS if name in answer}
        body = msgspec.json.encode(ours | theirs)
    return Whole(body, read_usage(answer.get("usage")), finish)
