"""Prompts to token ids, as TensorRT-LLM's tokenizer would; and what is answered to them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

BYTE_BOS = 256
WORDS = (
    *("one", "two", "grüße", "three", "日本語", "four"),
    *("🙂🎉", "five", "привет", "six", "été", "ten"),
)


class Prompts:
    """The model folder's tokenizer; bytes and a BOS where there is no such folder."""

    def __init__(self, model: str) -> None:
        path = Path(model) / "tokenizer.json"
        self._tokenizer = Tokenizer.from_str(path.read_text()) if path.is_file() else None

    def plain(self, text: str) -> tuple[int, ...]:
        """Of /v1/completions: `add_special_tokens` is true there."""
        if self._tokenizer is None:
            return (BYTE_BOS, *text.encode())
        return tuple(self._tokenizer.encode(text, add_special_tokens=True).ids)

    def chat(self, messages: Sequence[dict[str, Any]]) -> tuple[int, ...]:
        """Of /v1/chat/completions, through a template of the fake's own."""
        text = "".join(f"<{turn['role']}>{turn.get('content') or ''}" for turn in messages)
        if self._tokenizer is None:
            return (BYTE_BOS, *f"{text}<assistant>".encode())
        return tuple(self._tokenizer.encode(text + "<assistant>", add_special_tokens=False).ids)


def answer_of(ids: Sequence[int], tokens: int) -> str:
    """The answer to a prompt, a word a token: no two prompts' are likely to be alike."""
    digest = hashlib.sha256(repr(list(ids)).encode()).digest()
    return " ".join(WORDS[(digest[i % 32] + i // 32) % len(WORDS)] for i in range(tokens))
