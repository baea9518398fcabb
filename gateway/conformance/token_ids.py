"""Whether a chat can be token ids: a plain prompt becomes one where only chats take a salt."""

from __future__ import annotations

import random
from typing import Any

from gateway.conformance.backend import Backend, Wrong
from gateway.conformance.verdict import Line, told
from runtime.config.attached import KINDS

NAMES = ("prompts of token ids are answered as they are", "cross-tenant hits by token ids")
SIZE = 200
IDS = range(10, 200)  # any vocabulary has them


async def token_ids(backend: Backend) -> list[Line]:
    """They are counted one by one, and what a has sent is no hit of b's."""
    habits, cache = KINDS[backend.target.kind], backend.target.cache
    if not habits.takes_ids or (cache or habits.cache) != "salted":
        return []
    ids = random.Random().choices(IDS, k=SIZE)  # noqa: S311 - prompts, no secrets
    try:
        counted, _ = await _counts(backend, ids, "a")
        _, again = await _counts(backend, ids, "a")
        _, crossed = await _counts(backend, ids, "b")
    except Wrong as fault:
        return [told(NAMES[0], holds=False, seen=str(fault))]
    return [
        told(NAMES[0], holds=counted == SIZE, seen=f"{counted} tokens counted of {SIZE}"),
        told(
            NAMES[1],
            holds=crossed == 0,
            seen=f"{crossed} tokens of a's in b's usage; {again} of its own when a asks again",
        ),
    ]


async def _counts(backend: Backend, ids: list[int], tenant: str) -> tuple[Any, int]:
    """Prompt tokens, and how many of them were cached."""
    more = {"messages": [], "prompt_token_ids": ids}
    said = await backend.whole("", tenant=tenant, max_tokens=1, **more)
    return said.usage.get("prompt_tokens"), said.cached or 0
