"""Whether what can't be answered is refused as a fault of the request, in words that we know."""

from __future__ import annotations

from typing import Any

from gateway.conformance.backend import Backend
from gateway.conformance.verdict import Line, told
from gateway.errors import BadRequest, ContextTooLong
from gateway.relay.sse import error_of
from gateway.relay.upstream_errors import refusal_of

ONE_MODEL = ("llamacpp", "trtllm")  # kinds that have one, and don't look at its name
LONG_WORDS = 400_000  # more than any context holds


async def refusals(backend: Backend) -> list[Line]:
    """A model, a prompt and a field that can't be."""
    long = backend.body("word " * LONG_WORDS, max_tokens=1)
    asked = "messages" if backend.operation == "chat" else "prompt"
    return [
        await _refused(backend, "a prompt that is too long", long, ContextTooLong),
        await _refused(
            backend, "a field of the wrong type", backend.body("hi", max_tokens=1) | {asked: 7}
        ),
        await _unknown_model(backend),
    ]


async def _refused(
    backend: Backend, name: str, body: dict[str, Any], kind: type[BadRequest] = BadRequest
) -> Line:
    status, code, message = await _answer(backend, body)
    if status == 200:
        return told(name, holds=False, seen="it is answered")
    refusal = refusal_of(code, message, status)
    seen = f"{status}, which clients see as {refusal.row.status} {refusal.code}"
    return told(name, holds=isinstance(refusal, kind), seen=seen)


async def _unknown_model(backend: Backend) -> Line:
    """404 or 400. Clients never see it: the gateway knows its models."""
    name = "a model that isn't there"
    body = backend.body("hi", max_tokens=1) | {"model": "no-such-model"}
    status, _, message = await _answer(backend, body)
    if status == 200 and backend.target.kind in ONE_MODEL:
        return told(name, holds=True, seen="answered by the one model there is, as its kind does")
    holds = status in (400, 404) and bool(message)
    return told(name, holds=holds, seen=f"{status}{'' if message else ', without a word'}")


async def _answer(backend: Backend, body: dict[str, Any]) -> tuple[int, str, str]:
    status, data = await backend.post(body)
    return status, *error_of(data)
