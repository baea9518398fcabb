"""The fields that clients may send, as OpenAI documents them; all others are refused by name.

Which of them are honoured is `schema`'s business; here stand their types, and for those that no
engine of ours can honour, the values that mean the same as leaving them out.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

MAX_STOPS = 4
MAX_INT32 = 2**31 - 1

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
    # documented; see HARMLESS for which values pass
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
    # documented; see HARMLESS
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
    # documented; see HARMLESS
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None


# Accepted, and without any effect on the answer: `prompt_cache_key` and `user` choose a server.
IGNORED = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",
    }
)
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
