"""A model folder with a tokenizer and nothing else: bytes, and a control token before each text."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

OPENING, ENDING = "<|begin|>", "<|end|>"


def tokenizer_folder(folder: Path) -> Path:
    """Written there, as Llama 3's would be."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: i for i, char in enumerate(alphabet)}
    found = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens([AddedToken(name, special=True) for name in (OPENING, ENDING)])
    found.post_processor = processors.TemplateProcessing(
        single=f"{OPENING} $A", special_tokens=[(OPENING, found.token_to_id(OPENING))]
    )
    found.save(str(folder / "tokenizer.json"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": OPENING}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder


def ids_of(folder: Path, text: str) -> list[int]:
    """What the model's own server makes of a plain prompt."""
    found: list[int] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    return found
