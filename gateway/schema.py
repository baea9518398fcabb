"""The wire formats that clients speak: bytes become an Ask, or a 400 with the path of the fault.

Each field that OpenAI documents is honoured, or accepted and ignored where that can't change the
answer, or refused; any other field is refused by name. So nothing a client writes reaches an engine
that isn't named here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

import msgspec
from msgspec import Struct

from gateway.errors import BadRequest, UnknownField, Unsupported
from gateway.fields import (
    HARMLESS,
    HARMLESS_IN_MESSAGE,
    IGNORED,
    MAX_INT32,
    ChatFields,
    ChatMessage,
    CommonFields,
    CompletionFields,
    TextPart,
)

Judged = tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]], dict[str, tuple[Any, ...]]]

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


class Turn(Struct):
    """A message reduced to role and text, as engines take it."""

    role: str
    content: str


class Ask(Struct, kw_only=True):
    """A client's request, checked: all that an engine's body is built from."""

    operation: Literal["chat", "completion"]
    model: str
    messages: list[Turn] | None = None
    prompt: str | list[int] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: list[str] = []
    stream: bool = False
    include_usage: bool = False
    session: str = ""  # as the client names it; no engine is sent it

    def engine_body(self) -> dict[str, Any]:
        """The fields that an engine is sent, absent ones left out."""
        names = ("model", "messages", "prompt", "max_tokens", "temperature", "top_p", "seed")
        body = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.stop:
            body["stop"] = self.stop
        if self.stream:
            body["stream"] = True
        return body


_chat = msgspec.json.Decoder(ChatFields)
_completion = msgspec.json.Decoder(CompletionFields)


def decode_chat(body: bytes) -> Ask:
    """A chat request. Raises BadRequest with the path of the first fault."""
    fields = _decode(_chat, body)
    _refuse_unsupported(fields, "")
    ask = _common(fields, "chat")
    ask.messages = [_turn(message, f"messages[{i}]") for i, message in enumerate(fields.messages)]
    ask.max_tokens = fields.max_completion_tokens or fields.max_tokens
    ask.session = fields.prompt_cache_key or ask.session
    return ask


def decode_completion(body: bytes) -> Ask:
    """A completion request. Raises BadRequest with the path of the first fault."""
    fields = _decode(_completion, body)
    _refuse_unsupported(fields, "")
    ask = _common(fields, "completion")
    ask.prompt = _prompt(fields.prompt)
    return ask


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A route that takes requests for a model: what clients may send there, and its reading."""

    fields: type[CommonFields]
    decode: Callable[[bytes], Ask]


ENDPOINTS = {
    "/v1/chat/completions": Endpoint(ChatFields, decode_chat),
    "/v1/completions": Endpoint(CompletionFields, decode_completion),
}
ADDRESS = frozenset({"model", "messages", "prompt"})  # what is asked, and of whom


def supported_parameters() -> list[str]:
    """The fields by which a client shapes its answer: those that are honoured."""
    named = {name for end in ENDPOINTS.values() for name in end.fields.__struct_fields__}
    return sorted(named - ADDRESS - IGNORED - set(HARMLESS))


def _common(fields: CommonFields, operation: Literal["chat", "completion"]) -> Ask:
    stop = [fields.stop] if isinstance(fields.stop, str) else fields.stop or []
    if "" in stop:
        raise BadRequest("stop: a stop sequence must not be empty", param="stop")
    options = fields.stream_options
    if options is not None and not fields.stream:
        raise BadRequest(
            "stream_options: only allowed when `stream` is true", param="stream_options"
        )
    return Ask(
        operation=operation,
        model=fields.model,
        max_tokens=fields.max_tokens,
        temperature=fields.temperature,
        top_p=fields.top_p,
        seed=fields.seed,
        stop=stop,
        stream=bool(fields.stream),
        include_usage=bool(options and options.include_usage),
        session=fields.user or "",
    )


def _turn(message: ChatMessage, path: str) -> Turn:
    role = ROLES.get(message.role)
    if role is None:
        found = message.role[:32]
        raise BadRequest(
            f"{path}.role: expected one of {', '.join(ROLES)}, found {found!r}",
            param=f"{path}.role",
        )
    _refuse_unsupported(message, f"{path}.")
    if isinstance(message.content, str):
        return Turn(role, message.content)
    if not message.content:
        raise BadRequest(f"{path}.content: is missing", param=f"{path}.content")
    parts = [_text(part, f"{path}.content[{i}]") for i, part in enumerate(message.content)]
    return Turn(role, "".join(parts))


def _text(part: TextPart, path: str) -> str:
    if part.type != "text":
        kind = part.type[:32]
        raise Unsupported(f"{path}.type: only text is taken, found {kind!r}", param=f"{path}.type")
    if not isinstance(part.text, str):
        raise BadRequest(f"{path}.text: is missing", param=f"{path}.text")
    return part.text


def _prompt(prompt: str | list[Any]) -> str | list[int]:
    """Text, token ids, or a list that holds just one of either."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, list) and not all(_is_token_id(item) for item in prompt):
        raise BadRequest(
            "prompt: expected one prompt a request, as text or as token ids of 0 or more",
            param="prompt",
        )
    if not prompt:
        raise BadRequest("prompt: must not be empty", param="prompt")
    return prompt


def _is_token_id(item: object) -> bool:
    return type(item) is int and 0 <= item <= MAX_INT32


def _judged(kind: type[Struct], harmless: dict[str, tuple[Any, ...]]) -> Judged:
    names = tuple(name for name in kind.__struct_fields__ if name in harmless)
    return names, attrgetter(*names), harmless


# The fields whose values are looked at, of each kind of struct that has any.
JUDGED = {
    ChatFields: _judged(ChatFields, HARMLESS),
    CompletionFields: _judged(CompletionFields, HARMLESS),
    ChatMessage: _judged(ChatMessage, HARMLESS_IN_MESSAGE),
}


def _refuse_unsupported(fields: Struct, prefix: str) -> None:
    names, values_of, harmless = JUDGED[type(fields)]
    values = values_of(fields)
    if values.count(None) == len(names):  # the usual case
        return
    for name, value in zip(names, values, strict=True):
        if value is None or any(_same(value, allowed) for allowed in harmless[name]):
            continue
        path = prefix + name
        raise Unsupported(f"{path}: this value is not supported here; leave it out", param=path)


def _same(value: Any, allowed: Any) -> bool:
    """Equal, without Python's `True == 1`."""
    return isinstance(value, bool) == isinstance(allowed, bool) and bool(value == allowed)


def _decode(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except NOT_JSON as fault:
        raise refusal(fault) from None


def refusal(fault: Exception) -> BadRequest:
    """What msgspec has against a body, as a refusal with the path of the fault."""
    if isinstance(fault, msgspec.ValidationError):
        return _refusal(str(fault))
    reason = "nested too deeply" if isinstance(fault, RecursionError) else str(fault)
    return BadRequest(f"the body is not valid JSON: {reason}", code="invalid_json")


_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*)`$")


def _refusal(text: str) -> BadRequest:
    """msgspec's "reason - at `$.path`" as a refusal with OpenAI's codes."""
    reason, _, where = text.partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    if unknown := _UNKNOWN.match(reason):
        name = _join(path, unknown[1][:64])
        return UnknownField(f"{name}: unknown parameter; leave it out", param=name)
    if missing := _MISSING.match(reason):
        name = _join(path, missing[1])
        return BadRequest(f"{name}: is missing", param=name, code="missing_required_parameter")
    return BadRequest(f"{path or 'body'}: {reason[:1].lower()}{reason[1:]}", param=path or None)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
