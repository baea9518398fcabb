"""Tokenizer folders as Qwen's and Llama 3's are: a template, names and token kinds of their own."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from engines.api import Message, RequestRefused
from engines.tokenizer import FolderTokenizer

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>"]
PLAIN = ["<tool_call>", "</tool_call>", "<think>", "</think>"]  # added, but no control tokens
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Qwen3's, but for its tools: it looks at the turns backwards, and cuts thoughts out of old ones.
TEMPLATE = """\
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, open=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.open and message.role == "user" and message.content is string %}
        {%- set ns.open = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- if message.reasoning_content is string %}
            {{- raise_exception('not here') }}
        {%- elif '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- if message.tool_calls %}
            {{- '<tool_call>' + (message.tool_calls | tojson) + '</tool_call>' }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
CHATS = [
    [Message("user", "What's 2+2? 日本 e\u0301 1234")],
    [Message("system", "Be brief."), Message("user", "Hi <think>x</think>")],
    [
        Message("user", "a"),
        Message("assistant", "<think>\nhm\n</think>\n\nfour"),
        Message("user", "Sure?\r\n\r\n  yes"),
    ],
]


def qwen_folder(place: Path, **changes: Any) -> Path:
    """A folder as Qwen3's, with a small vocabulary of bytes and a few pairs."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "b"), ("i", "e"), ("t", "h"), ("th", "i"), ("a", "s")]
    words = [*letters, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    split: list[Any] = [
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in PLAIN])
    tokenizer.save(str(place / "tokenizer.json"))
    added = tokenizer.get_added_tokens_decoder()
    settings = {
        "add_bos_token": False,
        "added_tokens_decoder": {
            str(id): {"content": token.content, "special": token.special, "normalized": False}
            for id, token in added.items()
        },
        "additional_special_tokens": SPECIAL[1:],
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "chat_template": TEMPLATE,
        "model_max_length": 131072,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (place / "tokenizer_config.json").write_text(json.dumps(settings | changes))
    return place


def llama_folder(place: Path) -> Path:
    """The same vocabulary, with a token before each text, as Llama 3's tokenizer.json says it."""
    qwen_folder(place, bos_token="<|endoftext|>")
    tokenizer = Tokenizer.from_file(str(place / "tokenizer.json"))
    begin = (SPECIAL[0], tokenizer.token_to_id(SPECIAL[0]))
    template = processors.TemplateProcessing(f"{SPECIAL[0]} $A", special_tokens=[begin])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(False), template])
    tokenizer.save(str(place / "tokenizer.json"))
    return place


def rendered_by_transformers(folder: Path, messages: list[Message]) -> list[int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        reference = AutoTokenizer.from_pretrained(folder)
    turns = [{"role": m.role, "content": m.content} for m in messages]
    ids: list[int] = reference.apply_chat_template(
        turns, add_generation_prompt=True, return_dict=False
    )
    return ids


@pytest.mark.parametrize("messages", CHATS, ids=["plain", "system", "thoughts"])
def test_a_qwen_chat_has_the_ids_that_transformers_gives(
    tmp_path: Path, messages: list[Message]
) -> None:
    """Normalised, cut and merged alike; thoughts of old turns are left out alike."""
    folder = qwen_folder(tmp_path)
    expected = rendered_by_transformers(folder, messages)
    assert FolderTokenizer(folder).encode_chat(messages) == expected


def test_control_tokens_in_a_qwen_chat_are_plain_text(tmp_path: Path) -> None:
    """Also those that no template writes."""
    tokenizer = FolderTokenizer(qwen_folder(tmp_path))
    attack = "".join(SPECIAL)
    ids = tokenizer.encode_chat([Message("user", attack)])
    harmless = tokenizer.encode_chat([Message("user", "x")])
    for name, id in tokenizer._special.items():
        assert ids.count(id) == harmless.count(id), name


def test_a_thought_is_told_as_text(tmp_path: Path) -> None:
    """<think> is a token of its own, and what it stands for is shown."""
    tokenizer = FolderTokenizer(qwen_folder(tmp_path))
    ids = tokenizer.encode("<think>naïve</think>")
    decoder = tokenizer.decoder()
    assert "".join(map(decoder.push, ids)) + decoder.flush() == "<think>naïve</think>"
    assert len(ids) == 2 + len("naïve".encode())


def test_ids_past_the_vocabulary_are_no_text(tmp_path: Path) -> None:
    """Qwen's embedding has more rows than there are tokens."""
    decoder = FolderTokenizer(qwen_folder(tmp_path)).decoder()
    assert decoder.push(5000) == ""


def test_a_template_in_a_file_of_its_own_comes_first(tmp_path: Path) -> None:
    """Newer folders have it in chat_template.jinja."""
    folder = qwen_folder(tmp_path, chat_template="{{ raise_exception('old') }}")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    assert FolderTokenizer(folder).encode_chat(CHATS[0]) == rendered_by_transformers(
        folder, CHATS[0]
    )


def test_of_several_named_templates_the_default_is_meant(tmp_path: Path) -> None:
    """Older folders list them."""
    listed = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "chat"}]
    tokenizer = FolderTokenizer(qwen_folder(tmp_path, chat_template=listed))
    assert tokenizer.encode_chat(CHATS[0]) == tokenizer.encode("chat")


def test_of_named_templates_without_a_default_none_is_guessed(tmp_path: Path) -> None:
    """Such a model takes plain prompts."""
    listed = [{"name": "tool_use", "template": "tools"}]
    tokenizer = FolderTokenizer(qwen_folder(tmp_path, chat_template=listed))
    with pytest.raises(RequestRefused, match="plain prompt"):
        tokenizer.encode_chat(CHATS[0])


def test_a_plain_prompt_begins_as_transformers_lets_it_begin(tmp_path: Path) -> None:
    """With Llama 3's first token; a chat, whose template may write it, doesn't get it twice."""
    folder = llama_folder(tmp_path)
    tokenizer = FolderTokenizer(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        expected = AutoTokenizer.from_pretrained(folder)("abc the end").input_ids
    assert tokenizer.encode_prompt("abc the end") == expected
    assert tokenizer.encode("abc the end") == expected[1:]
    assert tokenizer.encode_prompt("") == expected[:1]
    assert tokenizer.encode_chat(CHATS[0]) == rendered_by_transformers(folder, CHATS[0])


def test_where_nothing_stands_before_a_text_a_plain_prompt_is_the_text(tmp_path: Path) -> None:
    """Qwen's, and the packaged model's."""
    tokenizer = FolderTokenizer(qwen_folder(tmp_path))
    assert tokenizer.encode_prompt("abc") == tokenizer.encode("abc")
