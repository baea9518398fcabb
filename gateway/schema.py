"""The wire formats that clients speak: bytes become an Ask, or a 400 with the path of the fault.

Each field that OpenAI documents is honoured, or accepted and ignored where that can't change the
answer, or refused; any other field is refused by name. So nothing a client writes reaches an engine
that isn't named here.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.errors import BadRequest, UnknownField, Unsupported

MAX_STOPS = 4
MAX_INT32 = 2**31 - 1
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

Tokens = Annotated[int, Meta(ge=1, le=MAX_INT32)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(gt=0, le=1)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
StopText = Annotated[str, Meta(max_length=256)]
Stops = StopText | Annotated[list[StopText], Meta(max_length=MAX_STOPS)]


class StreamOptions(Struct, forbid_unknown_fields=True):
    """OpenAI's `stream_options`."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # padding of frames: accepted, ignored


class TextPart(Struct, forbid_unknown_fields=True):
    """A part of a message's content; only text is taken."""

    type: str
    text: str | UnsetType = UNSET
    image_url: Any = UNSET
    input_audio: Any = UNSET
    file: Any = UNSET
    refusal: Any = UNSET


class ChatMessage(Struct, forbid_unknown_fields=True):
    """A turn of a chat, as clients send it (and as answers of ours come back to us)."""

    role: str
    content: str | list[TextPart] | None = None
    name: Any = None
    refusal: Any = None
    annotations: Any = None
    audio: Any = None
    tool_calls: Any = None
    function_call: Any = None
    tool_call_id: Any = None


class CommonFields(Struct, forbid_unknown_fields=True, kw_only=True):
    """What both routes take."""

    model: Annotated[str, Meta(min_length=1, max_length=128)]
    max_tokens: Tokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    seed: Seed | None = None
    stop: Stops | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    user: str | None = None
    # documented; see REFUSED for which values pass
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None


class ChatFields(CommonFields, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=4096)]
    max_completion_tokens: Tokens | None = None
    # accepted and ignored: none of these can change the answer
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    parallel_tool_calls: bool | None = None
    # documented; see REFUSED
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: Any = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None
    moderation: Any = None


class CompletionFields(CommonFields, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[Any]
    # documented; see REFUSED
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None


# Values of documented fields that mean "as if absent"; anything else would change the answer.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "moderation": (),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}
HARMLESS_IN_MESSAGE: dict[str, tuple[Any, ...]] = {
    "name": (),
    "refusal": (),
    "annotations": ([],),
    "audio": (),
    "tool_calls": ([],),
    "function_call": (),
    "tool_call_id": (),
}


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
    _refuse_unsupported(fields, HARMLESS, "")
    ask = _common(fields, "chat")
    ask.messages = [_turn(message, f"messages[{i}]") for i, message in enumerate(fields.messages)]
    ask.max_tokens = fields.max_completion_tokens or fields.max_tokens
    return ask


def decode_completion(body: bytes) -> Ask:
    """A completion request. Raises BadRequest with the path of the first fault."""
    fields = _decode(_completion, body)
    _refuse_unsupported(fields, HARMLESS, "")
    ask = _common(fields, "completion")
    ask.prompt = _prompt(fields.prompt)
    return ask


def _common(fields: CommonFields, operation: Literal["chat", "completion"]) -> Ask:
    stop = [fields.stop] if isinstance(fields.stop, str) else fields.stop or []
    if "" in stop:
        raise BadRequest("a stop sequence must not be empty", param="stop")
    options = fields.stream_options
    if options is not None and not fields.stream:
        raise BadRequest("is only allowed when `stream` is true", param="stream_options")
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
    )


def _turn(message: ChatMessage, path: str) -> Turn:
    role = ROLES.get(message.role)
    if role is None:
        found = message.role[:32]
        raise BadRequest(
            f"{path}.role: expected one of {', '.join(ROLES)}, found {found!r}",
            param=f"{path}.role",
        )
    _refuse_unsupported(message, HARMLESS_IN_MESSAGE, f"{path}.")
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
        raise Unsupported("prompt: only one prompt a request, text or token ids", param="prompt")
    if not prompt:
        raise BadRequest("prompt: must not be empty", param="prompt")
    return prompt


def _is_token_id(item: object) -> bool:
    return type(item) is int and 0 <= item <= MAX_INT32


def _refuse_unsupported(fields: Struct, harmless: dict[str, tuple[Any, ...]], prefix: str) -> None:
    for name in fields.__struct_fields__:
        if name not in harmless:
            continue
        value = getattr(fields, name)
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
    except msgspec.ValidationError as fault:
        raise _refusal(str(fault)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        reason = "nested too deeply" if isinstance(fault, RecursionError) else str(fault)
        raise BadRequest(f"the body is not valid JSON: {reason}", code="invalid_json") from None


_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*)`$")


def _refusal(text: str) -> BadRequest:
    """msgspec's "reason - at `$.path`" as a refusal with OpenAI's codes."""
    reason, _, where = text.partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    if unknown := _UNKNOWN.match(reason):
        name = _join(path, unknown[1][:64])
        return UnknownField(f"Unknown parameter: '{name}'.", param=name)
    if missing := _MISSING.match(reason):
        name = _join(path, missing[1])
        return BadRequest(
            f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter"
        )
    return BadRequest(f"{path or 'body'}: {reason[:1].lower()}{reason[1:]}", param=path or None)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
