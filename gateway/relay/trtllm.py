"""What TensorRT-LLM's server says in its own way: answers, stops by its guard, and refusals.

Its plain prompts take no salt. So one is sent as a chat of its token ids, and here the chat that
comes back becomes a completion again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from engines.api import KvIntegrityAbort
from gateway.errors import BadRequest, Refusal, UpstreamFailed
from gateway.relay.sse import BadFrame, Frame, Read, foreign_reader
from gateway.relay.upstream_errors import is_too_long, refusal_of
from runtime.host.answer import StopScanner

KIND = "trtllm"
GIVEN_UP = ("cancelled", "timeout", "not_finished")  # reasons by which no answer ends
FAILED = "the engine failed; try again"
# Its own faults come with status 400, too.
_OWN_CODES = ("internal_error", "InternalServerError")
_OWN_FAULT = re.compile(
    r"\bcuda|\bnccl|\bmpi|cublas|\boom\b|out of memory|executor|traceback|runtimeerror|bad_alloc"
    r"|shutting down|rank \d+",
    re.I,
)
_OF_THE_REQUEST = re.compile(
    r"prompt|token|message|conversation|role|template|stop|temperature|top_p|seed|input", re.I
)
# What FastAPI tells of a body, which quotes it: the salt, say, and all of a prompt.
_FIELD = re.compile(r"'loc': \(([^)]*)\), 'msg': (['\"])(.*?)(?:\2|$)", re.S)


def told_of_body(message: str) -> str:
    """A refusal without what it quotes of the body."""
    if "'loc'" not in message:
        return message
    found = _FIELD.findall(message)
    paths = [".".join(re.findall(r"[\w-]+", loc)).removeprefix("body.") for loc, _, _ in found]
    told = [f"{path}: {msg}" for path, (_, _, msg) in zip(paths, found, strict=True)]
    return "; ".join(told) or "a field of the wrong kind"


def is_own_fault(code: str, message: str) -> bool:
    """Whether a refusal that looks like the client's fault is surely the server's."""
    if is_too_long(message):
        return False
    return code in _OWN_CODES or bool(_OWN_FAULT.search(message))


def refusal_of_body(code: str, message: str, param: str) -> Refusal:
    """What a client is told of a 400 that isn't surely the server's fault.

    All that clients send was checked before, so one that tells of nothing of the request's isn't
    its fault, either.
    """
    found = refusal_of(code, message, 400, param=param)
    is_told = is_too_long(message) or _OF_THE_REQUEST.search(message)
    return found if is_told or not isinstance(found, BadRequest) else UpstreamFailed(FAILED)


def trt_reader(answer_id: str, model: str, shape: Shape, *, is_salted: bool) -> Read:
    """Reads its stream; see `foreign_reader`. An end without a reason is none.

    Until the first text, frames are held: what fails by then is told with a status of its own.
    """
    inner = foreign_reader(answer_id, model, is_salted=is_salted, reshape=shape)
    held, is_open, has_reason = b"", False, False

    def read(event: bytes) -> Frame:
        nonlocal held, is_open, has_reason
        frame = inner(event)
        has_reason = has_reason or frame.finish_reason is not None
        if frame.done and not has_reason:
            raise BadFrame("it ended without saying why")
        if shape.is_over and frame.usage is not None:
            frame.done = True  # what follows is nobody's; leaving ends the engine's work
        if is_open or frame.error is not None:
            return frame
        held += frame.data
        is_open = frame.has_content or frame.done
        frame.data = held if is_open else b""
        return frame

    return read


class Shape:
    """Makes OpenAI's shape of one answer: of its chunks, or of all of it (`is_whole`).

    `prompt_tokens` are those of a plain prompt that was sent as a chat: a completion is made of it.
    It ends before the first of `stops`: the engine misses one that is spelt with other tokens than
    it has by itself. `is_over` says that it has met one.
    Raises IntegrityAbort where its guard stopped the answer, and BadFrame where it is none.
    """

    def __init__(
        self,
        sent_as: Literal["chat", "completion"],
        prompt_tokens: int | None = None,
        *,
        stops: Sequence[str] = (),
        is_whole: bool = False,
    ) -> None:
        self._is_chat = sent_as == "chat"
        self._inside = "message" if is_whole else "delta"  # of a chat's choice
        self._is_whole = is_whole
        self._prompt_tokens = prompt_tokens
        self._shows_chat = self._is_chat and prompt_tokens is None
        self._object = "text_completion"
        if self._shows_chat:
            self._object = "chat.completion" if is_whole else "chat.completion.chunk"
        self._created: Any = None
        self._scanner = StopScanner(stops)
        self.is_over = False

    def __call__(self, chunk: Any) -> dict[str, Any]:
        choices = chunk.get("choices") if isinstance(chunk, dict) else None
        if not isinstance(choices, list):
            raise BadFrame("no choices")
        usage = chunk.get("usage")
        self._check(usage)
        self._created = self._created or chunk.get("created")  # older versions tell others
        return {
            "object": self._object,
            "created": self._created,
            "choices": [shaped for choice in choices if (shaped := self._choice(choice))],
            "usage": usage,
        }

    def _check(self, usage: Any) -> None:
        """It answers what was asked: a version that forgets token ids counts other ones."""
        expected = self._prompt_tokens
        if expected is None or not isinstance(usage, dict):
            return
        if (found := usage.get("prompt_tokens")) != expected:
            raise BadFrame(f"it answers a prompt of {found} tokens, and not ours of {expected}")

    def _choice(self, choice: Any) -> dict[str, Any]:
        """What it shows; {} for what says only who speaks."""
        if not isinstance(choice, dict):
            raise BadFrame("a choice that isn't an object")
        if choice.get("stop_reason") == KvIntegrityAbort.code:
            raise refusal_of(KvIntegrityAbort.code, "")
        reason = choice.get("finish_reason")
        if reason in GIVEN_UP or not (reason or not self._is_whole):
            raise BadFrame(f"the engine gave the answer up: {reason}")
        if self.is_over:
            return {}
        said = choice.get(self._inside) if self._is_chat else {"content": choice.get("text")}
        if not isinstance(said, dict):
            raise BadFrame(f"a {self._inside} of another shape")
        text, reason = self._cut(_text(said, with_thoughts=not self._shows_chat), reason)
        shown = self._chat(said, text) if self._shows_chat else {"text": text}
        if not self._shows_chat and not (shown["text"] or reason):
            return {}
        head = {"index": choice.get("index", 0)}
        return head | shown | {"logprobs": None, "finish_reason": reason}

    def _cut(self, text: str, reason: str | None) -> tuple[str, str | None]:
        """The text that may leave, and why the answer ends with it, if it does."""
        text, self.is_over = self._scanner.push(text)
        if self.is_over:
            return text, "stop"
        return text + self._scanner.flush() if reason else text, reason

    def _chat(self, said: dict[str, Any], text: str) -> dict[str, Any]:
        kept = {name: said[name] for name in ("role", "reasoning_content") if said.get(name)}
        if self._is_whole:
            kept |= {"content": text, "refusal": None}
        elif text or "content" in said:
            kept["content"] = text
        return {self._inside: kept}


def _text(said: dict[str, Any], *, with_thoughts: bool) -> str:
    """A plain prompt's is all of it: a reasoning parser has cut thoughts out."""
    thoughts, text = said.get("reasoning_content") or "", said.get("content") or ""
    if not (isinstance(thoughts, str) and isinstance(text, str)):
        raise BadFrame("a text of another type")
    return thoughts + text if with_thoughts else text
