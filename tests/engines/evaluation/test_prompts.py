"""The operator's file: what its lines may be, and that every fault is told with its number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.embedded.evaluation.prompts import BadPrompts, Text, read
from engines.tokenizer import FolderTokenizer

SECRET = "canary-8842"


@pytest.fixture
def tokenizer(tiny_dir: Path) -> FolderTokenizer:
    return FolderTokenizer(tiny_dir)


def write(folder: Path, *lines: Any) -> Path:
    path = folder / "mine.jsonl"
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(raw))
    return path


def faults_of(path: Path, tokenizer: FolderTokenizer, most: int = 100) -> list[str]:
    with pytest.raises(BadPrompts) as found:
        read(path, tokenizer, most)
    return found.value.faults


def test_prompts_and_answers_become_tokens(tmp_path: Path, tokenizer: FolderTokenizer) -> None:
    """An answer follows its prompt; empty lines are passed over."""
    path = write(tmp_path, {"prompt": "abc"}, b"", {"prompt": "ab", "answer": "cd"}, b"  \r")
    a, b, c, d = tokenizer.encode("abcd")
    assert read(path, tokenizer, 100) == [Text((a, b, c), 3), Text((a, b, c, d), 2)]


def test_messages_are_rendered_as_a_chat(tmp_path: Path, model_dir: Path) -> None:
    """With the opening of the answer's turn, as when it is served."""
    tokenizer = FolderTokenizer(model_dir)
    turn = {"role": "user", "content": "Hi"}
    (text,) = read(write(tmp_path, {"messages": [turn], "answer": "Yo"}), tokenizer, 100)
    assert tokenizer.encode("Yo") == list(text.tokens[text.prompt_len :])
    assert text.tokens[0] == 1  # <|im_start|>


def test_every_fault_of_every_line_is_told(tmp_path: Path, tokenizer: FolderTokenizer) -> None:
    """At once, with its line; what the texts say isn't."""
    path = write(
        tmp_path,
        {"prompt": "fine"},
        f'{{"prompt": "{SECRET}",'.encode(),
        [SECRET],
        {"promt": SECRET},
        {"prompt": SECRET, "messages": []},
        {"prompt": "", "answer": 3},
        {"messages": [{"role": "user"}, SECRET]},
        b'{"prompt": "\xff"}',
        {"prompt": SECRET * 10},
        {"messages": [{"role": "user", "content": SECRET}]},
        b'{"prompt": "\\ud800"}',
        b"[" * 200_000,
        {f"What is {SECRET}?": "a text", "prompt": "a"},
    )
    faults = faults_of(path, tokenizer)
    assert faults == [
        "line 2: isn't JSON from column 26 on",
        "line 3: isn't an object",
        "line 4: has an unknown key 'promt'; known: answer, messages, prompt",
        'line 4: needs either "prompt" or "messages"',
        'line 5: needs either "prompt" or "messages"',
        'line 5: "messages" must be a list, and not empty',
        'line 6: "prompt" must be a text, and not empty',
        'line 6: "answer" must be a text, and not empty',
        'line 7: messages[0] must be {"role": text, "content": text}',
        'line 7: messages[1] must be {"role": text, "content": text}',
        "line 8: isn't UTF-8",
        "line 9: has 110 tokens, and the model takes 100",
        "line 10: this model has no chat template: send a plain prompt",
        "line 11: the text holds a lone surrogate: it isn't Unicode",
        "line 12: holds too long a number, or too deep a nesting",
        "line 13: has an unknown key; known: answer, messages, prompt",
    ]
    assert SECRET not in "".join(faults)


def test_a_file_without_a_prompt_is_told(tmp_path: Path, tokenizer: FolderTokenizer) -> None:
    """And one that can't be read."""
    assert faults_of(write(tmp_path, b"", b" "), tokenizer) == ["it holds no prompt"]
    assert faults_of(tmp_path / "none", tokenizer) == ["can't be read: No such file or directory"]


def test_a_mark_of_byte_order_is_no_fault(tmp_path: Path, tokenizer: FolderTokenizer) -> None:
    """Some editors begin every file with one."""
    (text,) = read(write(tmp_path, b'\xef\xbb\xbf{"prompt": "a"}'), tokenizer, 100)
    assert text.tokens == tuple(tokenizer.encode("a"))
