"""The operator's own texts: lines of JSON to token ids. Every fault is told, with its line number.

A line is {"prompt": text} or {"messages": [{"role": text, "content": text}, ...]}, and may have an
"answer". Faults name keys and numbers, never what a prompt says.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.api import EngineError, Message, RequestRefused, Tokenizer

KEYS = {"prompt", "messages", "answer"}
LONGEST_KEY = 20  # characters of an unknown one that are told


class BadPrompts(EngineError):
    """The file can't be used: `faults` says why, a line each."""

    code = "bad_prompts"

    def __init__(self, faults: list[str]) -> None:
        super().__init__(f"{len(faults)} of its lines can't be used")
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt with its answer, if it has one."""

    tokens: tuple[int, ...]
    prompt_len: int

    @property
    def targets(self) -> tuple[int, ...]:
        """What follows each token but the last."""
        return self.tokens[1:]


def read(path: Path, tokenizer: Tokenizer, most_tokens: int) -> list[Text]:
    """All texts of the file. Raises BadPrompts with every fault at once."""
    try:
        lines = path.read_bytes().removeprefix(BOM_UTF8).splitlines()
    except OSError as error:
        raise BadPrompts([f"can't be read: {error.strerror}"]) from error
    texts, faults = [], []
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                texts.append(_text(_object(line), tokenizer, most_tokens))
        except _FaultyLine as error:
            faults += [f"line {number}: {fault}" for fault in error.faults]
    if not texts and not faults:
        faults = ["it holds no prompt"]
    if faults:
        raise BadPrompts(faults)
    return texts


class _FaultyLine(Exception):
    def __init__(self, *faults: str) -> None:
        super().__init__()
        self.faults = faults


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        told = json.loads(line.decode())
    except UnicodeDecodeError:
        raise _FaultyLine("isn't UTF-8") from None
    except json.JSONDecodeError as error:
        raise _FaultyLine(f"isn't JSON from column {error.colno} on") from None
    except (ValueError, RecursionError):
        raise _FaultyLine("holds too long a number, or too deep a nesting") from None
    if faults := list(_faults(told)):
        raise _FaultyLine(*faults)
    found: Mapping[str, Any] = told
    return found


def _text(told: Mapping[str, Any], tokenizer: Tokenizer, most_tokens: int) -> Text:
    try:
        prompt, answer = _tokens(told, tokenizer)
    except RequestRefused as error:
        raise _FaultyLine(str(error)) from error
    num_tokens = len(prompt) + len(answer)
    if not prompt:
        raise _FaultyLine("the prompt has no tokens")
    if num_tokens > most_tokens:
        raise _FaultyLine(f"has {num_tokens} tokens, and the model takes {most_tokens}")
    return Text((*prompt, *answer), len(prompt))


def _tokens(told: Mapping[str, Any], tokenizer: Tokenizer) -> tuple[Sequence[int], Sequence[int]]:
    if "messages" in told:
        turns = [Message(turn["role"], turn["content"]) for turn in told["messages"]]
        prompt = tokenizer.encode_chat(turns)
    else:
        prompt = tokenizer.encode_prompt(told["prompt"])
    return prompt, tokenizer.encode(told["answer"]) if "answer" in told else []


def _faults(told: Any) -> Iterator[str]:
    if not isinstance(told, dict):
        yield "isn't an object"
        return
    for key in sorted(set(told) - KEYS):
        yield f"has an unknown key{_told(key)}; known: {', '.join(sorted(KEYS))}"
    if ("prompt" in told) == ("messages" in told):
        yield 'needs either "prompt" or "messages"'
    for key in ("prompt", "answer"):
        if key in told and not (isinstance(told[key], str) and told[key]):
            yield f'"{key}" must be a text, and not empty'
    if "messages" in told:
        yield from _message_faults(told["messages"])


def _told(key: str) -> str:
    """A word; whatever else stands there may be what a prompt says."""
    return f" {key!r}" if key.isascii() and key.isidentifier() and len(key) <= LONGEST_KEY else ""


def _message_faults(messages: Any) -> Iterator[str]:
    if not isinstance(messages, list) or not messages:
        yield '"messages" must be a list, and not empty'
        return
    for place, turn in enumerate(messages):
        is_turn = isinstance(turn, dict) and turn.keys() == {"role", "content"}
        if not is_turn or not all(isinstance(value, str) for value in turn.values()):
            yield f'messages[{place}] must be {{"role": text, "content": text}}'
