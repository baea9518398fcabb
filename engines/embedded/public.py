"""Prompts that the operator has declared public, so that all tenants share their pages.

For system prompts that are known to everyone: declared word by word in the configuration, never
inferred from what tenants send. Only whole pages of the declared beginning are shared; whatever
follows it belongs to the request's own domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from engines.api import Message, RequestRefused, Tokenizer
from engines.embedded.config import UnsupportedError

PUBLIC_DOMAIN = "(public)"  # no tenant's: those are keyed hashes


class PublicPrompts:
    """Beginnings of prompts, as token ids."""

    def __init__(self, beginnings: Sequence[Sequence[int]], page_size: int) -> None:
        self._beginnings = sorted((tuple(ids) for ids in beginnings), key=len, reverse=True)
        self._page_size = page_size

    @classmethod
    def declared(cls, texts: Sequence[str], tokenizer: Tokenizer, page_size: int) -> PublicPrompts:
        """Of chats whose system message is one of these texts, whatever the user says.

        Raises UnsupportedError for a model that knows no chats.
        """
        try:
            return cls([_beginning(tokenizer, text) for text in texts], page_size)
        except RequestRefused as error:
            raise UnsupportedError(f"option 'public_prompts': {error}") from error

    def num_pages(self, prompt: Sequence[int]) -> int:
        """Leading whole pages of the prompt that hold nothing but what was declared."""
        for ids in self._beginnings:
            if tuple(prompt[: len(ids)]) == ids:
                return len(ids) // self._page_size
        return 0


def _beginning(tokenizer: Tokenizer, text: str) -> list[int]:
    """What chats with this system message have in common: tokens before the user's first word."""
    chats = [
        tokenizer.encode_chat([Message("system", text), Message("user", word)])
        for word in ("a", "Zz", "0", "\n", "你")
    ]
    common = takewhile(lambda ids: len(set(ids)) == 1, zip(*chats, strict=False))
    return [ids[0] for ids in common]
