"""Plain prompts get the ids that the model's own server would give them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from engines import registry
from engines.api import EngineError, RequestRefused

TEXTS = ["Hello, world", "a", " leading", "日本 🙂 é", "two\n\nlines"]
BOS, EOS = "<s>", "</s>"


def byte_level(*, opens: bool) -> Tokenizer:
    """As Qwen's, or as Llama 3's: with a control token before each text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: i for i, char in enumerate(alphabet)}
    found = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    return with_specials(found, opens=opens)


def pieces(*, opens: bool) -> Tokenizer:
    """As Llama 2's and Mistral's: words begin with an underscore, unknown characters are bytes."""
    chars = [BOS, EOS, *(f"<0x{i:02X}>" for i in range(256)), "▁", *map(chr, range(33, 127))]
    vocab = {char: i for i, char in enumerate(dict.fromkeys(chars))}
    found = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, fuse_unk=True))
    found.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return with_specials(found, opens=opens)


def with_specials(found: Tokenizer, *, opens: bool) -> Tokenizer:
    found.add_special_tokens([AddedToken(BOS, special=True), AddedToken(EOS, special=True)])
    if opens:
        ids = [(BOS, found.token_to_id(BOS))]
        found.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=ids)
    return found


def folder_of(folder: Path, tokenizer: Tokenizer, **settings: Any) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    told = {"bos_token": BOS, "eos_token": EOS, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder


FAST = "PreTrainedTokenizerFast"
FOLDERS: dict[str, tuple[Tokenizer, dict[str, Any]]] = {
    "no opening": (byte_level(opens=False), {"tokenizer_class": FAST}),
    "an opening": (byte_level(opens=True), {"tokenizer_class": FAST}),
    "underscores": (pieces(opens=False), {"tokenizer_class": FAST}),
    "underscores, an opening": (pieces(opens=True), {"tokenizer_class": FAST}),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_prompt_s_ids_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    tokenizer, settings = FOLDERS[name]
    folder = folder_of(tmp_path, tokenizer, **settings)
    ours = registry.prompt_encoder(str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import PreTrainedTokenizerFast

        theirs = PreTrainedTokenizerFast.from_pretrained(str(folder))
        for text in TEXTS:
            assert ours.encode_prompt(text) == theirs.encode(text, add_special_tokens=True), text


@pytest.mark.parametrize("says", [True, False, None])
def test_llama_s_class_says_itself_whether_a_text_is_opened(
    tmp_path: Path, says: bool | None
) -> None:
    """transformers writes its post-processor anew: whatever the folder's is, the class decides."""
    for opens in (True, False):
        said = {} if says is None else {"add_bos_token": says}
        tokenizer = byte_level(opens=opens)
        folder = folder_of(tmp_path, tokenizer, tokenizer_class="LlamaTokenizerFast", **said)
        bos = tokenizer.token_to_id(BOS)
        got = registry.prompt_encoder(str(folder)).encode_prompt("hi")
        assert got == ([] if says is False else [bos]) + tokenizer.encode("hi").ids[-2:]


def test_the_name_of_a_control_token_is_a_text_like_any_other(tmp_path: Path) -> None:
    tokenizer = byte_level(opens=True)
    encoder = registry.prompt_encoder(str(folder_of(tmp_path, tokenizer)))
    ids = encoder.encode_prompt(f"a{EOS}b{BOS}")
    assert not {tokenizer.token_to_id(BOS), tokenizer.token_to_id(EOS)} & set(ids[1:])
    assert ids[0] == tokenizer.token_to_id(BOS)
    assert len(ids) == 1 + len(f"a{EOS}b{BOS}")


def test_what_can_t_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no usable tokenizer"):
        registry.prompt_encoder(str(tmp_path))
    encoder = registry.prompt_encoder(str(folder_of(tmp_path, byte_level(opens=False))))
    with pytest.raises(RequestRefused, match="surrogate"):
        encoder.encode_prompt("\ud800")
