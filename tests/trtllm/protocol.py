"""The bodies of trtllm-serve: which fields it takes, and the shapes of answers and errors."""

from __future__ import annotations

import time
import uuid
from typing import Any, NamedTuple

from tests.trtllm.executor import Output

SAMPLING = frozenset(
    {
        *("model", "frequency_penalty", "logit_bias", "logprobs", "n", "presence_penalty", "seed"),
        *("stop", "stream", "stream_options", "temperature", "top_p", "user", "lora_request"),
        *("prompt_ignore_length", "best_of", "use_beam_search", "top_k", "top_p_min", "min_p"),
        *("repetition_penalty", "length_penalty", "early_stopping", "stop_token_ids"),
        *("include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens"),
        *("spaces_between_special_tokens", "truncate_prompt_tokens", "add_special_tokens"),
        *("response_format", "disaggregated_params", "max_tokens", "echo"),
    }
)
CHAT = SAMPLING | {
    *("messages", "prompt_token_ids", "max_completion_tokens", "top_logprobs", "tools"),
    *("tool_choice", "reasoning_effort", "add_generation_prompt", "documents", "chat_template"),
    *("chat_template_kwargs", "mm_processor_kwargs", "cache_salt"),
}
COMPLETION = SAMPLING | {"prompt", "suffix", "return_context_logits", "detokenize"}
NUMBERS = ("temperature", "top_p", "max_tokens", "n")


class Invalid(Exception):
    """As FastAPI tells what pydantic has against a body: with the input that it is about."""

    def __init__(self, kind: str, loc: tuple[str, ...], msg: str, given: Any) -> None:
        fault = {"type": kind, "loc": ("body", *loc), "msg": msg, "input": given}
        super().__init__(f"1 validation error:\n  {fault}")


def check(body: Any, *, is_chat: bool, known: frozenset[str] | None = None) -> None:
    """Raises Invalid. `known` is for a version that takes fewer fields."""
    if not isinstance(body, dict):
        raise Invalid("model_attributes_type", (), "Input should be a valid dictionary", body)
    if body.get("stream_options") is not None and not body.get("stream"):
        told = "Value error, stream_options can only be set if stream is true"
        raise Invalid("value_error", (), told, body)
    for name in body:
        if name not in (known or (CHAT if is_chat else COMPLETION)):
            raise Invalid("extra_forbidden", (name,), "Extra inputs are not permitted", body[name])
    for name in ("model", "messages" if is_chat else "prompt"):
        if name not in body:
            raise Invalid("missing", (name,), "Field required", body)
    _check_types(body)


def _check_types(body: dict[str, Any]) -> None:
    messages, salt = body.get("messages", []), body.get("cache_salt")
    if not isinstance(messages, list):
        raise Invalid("list_type", ("messages",), "Input should be a valid list", messages)
    if salt is not None and not (isinstance(salt, str) and salt.strip()):
        told = "Value error, Parameter 'cache_salt' must be a non-empty string if provided."
        raise Invalid("value_error", ("cache_salt",), told, salt)
    if not isinstance(body.get("prompt", ""), str | list):
        raise Invalid("string_type", ("prompt",), "Input should be a valid string", body["prompt"])
    for name in NUMBERS:
        if not isinstance(body.get(name) or 0, int | float):
            raise Invalid("float_type", (name,), "Input should be a valid number", body[name])


def error(message: str, kind: str = "BadRequestError", code: int = 400) -> dict[str, Any]:
    """Of everything but what pydantic refuses; the server's own faults, too."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


class Counts(NamedTuple):
    """What an answer tells along, or at its end."""

    prompt: int
    written: int
    cached: int

    def usage(self) -> dict[str, Any]:
        """Its usage object."""
        return {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.written,
            "completion_tokens": self.written,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


def extra(*, quotes: bool) -> dict[str, Any]:
    """What a choice says of the server's own business."""
    if not quotes:
        return {"avg_decoded_tokens_per_iter": 1.0}
    params = {"request_type": "context_only", "ctx_info_endpoint": "tcp://10.0.0.7:5555"}
    return {"avg_decoded_tokens_per_iter": 1.0, "disaggregated_params": params}


class Writer:
    """One answer's chunks, or its one body."""

    def __init__(self, model: str, *, is_chat: bool, new_ids: bool, quotes: bool) -> None:
        self._model = model
        self._is_chat = is_chat
        self._new_ids = new_ids
        self._quotes = quotes
        self._head = self._fresh()

    def _fresh(self) -> dict[str, Any]:
        """`created` differs from one to the next, as seconds would in a slow answer."""
        prefix = "chatcmpl" if self._is_chat else "cmpl"
        return {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time() * 1000) % 2**31}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = self._fresh() if self._new_ids else self._head
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        return head | {"object": kind, "model": self._model, "choices": choices}

    def role(self) -> dict[str, Any]:
        """The first chunk of a chat."""
        return self._chunk([{"index": 0, "delta": {"role": "assistant"}}])

    def piece(self, output: Output) -> dict[str, Any]:
        """A step's chunk. A chat's leaves out what is null; a completion's doesn't."""
        choice: dict[str, Any] = {"index": 0}
        if self._is_chat:
            choice |= {"delta": {"content": output.text_diff, "reasoning_content": ""}}
        else:
            choice |= {"text": output.text_diff, "token_ids": None, "logprobs": None}
        ending = {"finish_reason": output.finish_reason, "stop_reason": output.stop_reason}
        choice |= {k: v for k, v in ending.items() if v is not None or not self._is_chat}
        return self._chunk([choice | extra(quotes=self._quotes)])

    def total(self, counts: Counts) -> dict[str, Any]:
        """The usage chunk."""
        return self._chunk([]) | {"usage": counts.usage()}

    def whole(self, text: str, last: Output, counts: Counts | None) -> dict[str, Any]:
        """An unstreamed answer, nulls and all."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "mm_embedding_handle": None}
        if self._is_chat:
            message = {"role": "assistant", "content": text, "reasoning_content": ""}
            choice["message"] = message | {"reasoning": None, "tool_calls": []}
        else:
            choice |= {"text": text, "token_ids": None, "context_logits": None}
        choice |= {"finish_reason": last.finish_reason, "stop_reason": last.stop_reason}
        choice |= {"disaggregated_params": None} | extra(quotes=self._quotes)
        kind = "chat.completion" if self._is_chat else "text_completion"
        answer = self._head | {"object": kind, "model": self._model, "choices": [choice]}
        if counts:
            answer["usage"] = counts.usage()
        return answer | {"prompt_token_ids": [1, 2, 3] if self._quotes else None}
