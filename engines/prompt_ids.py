"""Plain prompts to token ids, for any folder with a `tokenizer.json`; needs `tokenizers` alone.

Told texts; never told who sent them, so it trusts none: a control token written in a text is
encoded as the plain characters it is made of.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engines import regular
from engines.api import EngineError, RequestRefused

# Of these, transformers writes the post-processor anew, whatever the folder's own one is.
_LLAMA_LIKE = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer")


class PromptIds:
    """`engines.api.PromptEncoder` of a tokenizer and of what stands beside it in its folder."""

    def __init__(self, tokenizer: Tokenizer, settings: Mapping[str, Any]) -> None:
        tokenizer.encode_special_tokens = True  # their names are text like any other
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._opening = self._found_opening(settings)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, all of it plain: no control token is recognised, none is added.

        Raises RequestRefused for text that isn't Unicode (a lone surrogate).
        """
        try:
            # as a batch of one: unlike `encode`, that lets other threads run meanwhile
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        except (UnicodeEncodeError, TypeError) as error:
            raise RequestRefused("the text holds a lone surrogate: it isn't Unicode") from error
        ids: list[int] = encoding.ids
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a plain prompt, after the control tokens that the folder puts before any text.

        Llama 3 has one. A chat's template writes it itself. Raises RequestRefused as `encode` does.
        """
        return self._opening + self.encode(text)

    def _found_opening(self, settings: Mapping[str, Any]) -> list[int]:
        """What comes before a text for transformers, and so for servers that use it; not what may
        come after."""
        kind = settings["tokenizer_class"].removesuffix("Fast")
        if kind in _LLAMA_LIKE:
            bos = self._tokenizer.token_to_id(name_of(settings.get("bos_token")))
            return [bos] if settings.get("add_bos_token", True) and bos is not None else []
        text = self.encode("a")
        whole: list[int] = self._tokenizer.encode("a", add_special_tokens=True).ids
        for start in range(len(whole) - len(text) + 1):
            if whole[start : start + len(text)] == text:
                return whole[:start]
        return []


def name_of(token: Any) -> str:
    """A token as `tokenizer_config.json` names it: as text, or in older files as an object."""
    return str((token.get("content") if isinstance(token, dict) else token) or "")


def read_folder(folder: Path) -> tuple[Tokenizer, dict[str, Any]]:
    """A folder's tokenizer, and what is said of it beside. Raises EngineError."""
    try:
        tokenizer = Tokenizer.from_str(regular.read(folder / "tokenizer.json").decode())
        settings: dict[str, Any] = json.loads(regular.read(folder / "tokenizer_config.json"))
        settings["tokenizer_class"] = str(settings.get("tokenizer_class") or "")
    except Exception as error:  # tokenizers raises bare Exception for a file it can't parse
        raise EngineError(f"{folder} holds no usable tokenizer: {error}") from error
    return tokenizer, settings


def load(folder: str) -> PromptIds:
    """Of a model folder. Takes a part of a second, in which no other thread of Python runs.

    Raises EngineError for an unusable one.
    """
    return PromptIds(*read_folder(Path(folder)))
