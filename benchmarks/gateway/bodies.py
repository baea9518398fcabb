"""What is asked: half a kilobyte, of a model whose name says how the engine answers."""

from __future__ import annotations

from typing import Any

import msgspec

QUESTION = "Tell me, in a few words and with care, what a bulkhead is for. " * 6
MODELS = ("plain", "paced-20", "slow-100", "silent", "half", "flood")
PACE_MS = 20
FAR_MS = 100


def body(model: str, chunks: int = 0) -> bytes:
    """A request; with `chunks`, for a stream of so many."""
    ask: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": chunks or 64,
        "temperature": 0.7,
    }
    if chunks:
        ask |= {"stream": True, "stream_options": {"include_usage": True}}
    return msgspec.json.encode(ask)
