"""The text that a model is calibrated on, as windows of tokens.

A .jsonl file holds an object a line: {"text": ...}, or {"messages": [...]}, which the model's own
template renders, where it has one. Any other file is taken as plain text. No torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.api import Message, RequestRefused
from engines.tokenizer import FolderTokenizer

SHIPPED = Path(__file__).parents[2] / "config" / "calibration" / "mixed.jsonl"
WINDOW = 512  # tokens
HELD_OUT_EVERY = 10  # each tenth window is kept for the measure of quality
LEAST_WINDOWS = 2


class BadCalibration(Exception):
    """Why a text can't calibrate, in one sentence."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Windows of tokens, all of one length, and what they were made from."""

    sha256: str  # of the file
    windows: list[list[int]]

    @property
    def held_out(self) -> list[int]:
        """Which windows are measured on and not fitted to; none of a very short text."""
        return list(range(HELD_OUT_EVERY - 1, len(self.windows), HELD_OUT_EVERY))

    @property
    def fitted(self) -> list[int]:
        """The others."""
        return [i for i in range(len(self.windows)) if i % HELD_OUT_EVERY != HELD_OUT_EVERY - 1]


def calibration(path: Path, folder: Path) -> Calibration:
    """A file as tokens of the model in `folder`. Raises BadCalibration."""
    try:
        content = path.read_bytes()
        texts = list(_texts(path, content.decode("utf-8-sig")))
    except (OSError, UnicodeDecodeError) as error:
        raise BadCalibration(f"cannot read the calibration text {path}: {error}") from error
    tokenizer, tokens = FolderTokenizer(folder), list[int]()
    encode = _shipped_tokens if path == SHIPPED else _tokens
    try:
        for text in texts:
            tokens += encode(text, tokenizer)
    except RequestRefused as error:  # by its template: it may take no system's turn, say
        raise BadCalibration(f"{path} has a chat that the model refuses: {error}") from error
    windows = [tokens[i : i + WINDOW] for i in range(0, len(tokens) - WINDOW + 1, WINDOW)]
    if len(windows) < LEAST_WINDOWS:
        raise BadCalibration(
            f"{path} has {len(tokens)} tokens of this model; "
            f"calibration needs {LEAST_WINDOWS * WINDOW} at least"
        )
    return Calibration(hashlib.sha256(content).hexdigest(), windows)


def _texts(path: Path, content: str) -> Iterator[str | list[Message]]:
    if path.suffix != ".jsonl":
        yield content
        return
    for number, line in enumerate(content.split("\n"), 1):
        if line.strip():
            yield _item(line, f"{path}:{number}")


def _item(line: str, where: str) -> str | list[Message]:
    try:
        item: Any = json.loads(line)
        if "text" in item:
            return _string(item["text"])
        return [
            Message(_string(turn["role"]), _string(turn["content"])) for turn in item["messages"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadCalibration(
            f"{where}: expected an object with `text`, or with `messages` of `role` and `content`"
        ) from error


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _tokens(text: str | list[Message], tokenizer: FolderTokenizer) -> list[int]:
    if isinstance(text, str):
        return tokenizer.encode(text)
    if tokenizer.has_template:
        return tokenizer.encode_chat(text)
    return tokenizer.encode(_plain(text))  # a base model's: it will be asked plain text


def _shipped_tokens(text: str | list[Message], tokenizer: FolderTokenizer) -> list[int]:
    """Some of it has a system's turn, and not every template takes one."""
    try:
        return _tokens(text, tokenizer)
    except RequestRefused:
        return tokenizer.encode(_plain(text))


def _plain(text: str | list[Message]) -> str:
    return text if isinstance(text, str) else "".join(f"{turn.content}\n\n" for turn in text)
