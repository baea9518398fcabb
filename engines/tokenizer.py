"""Text to token ids and back, for one model folder: `tokenizers` and `jinja2`, nothing heavier.

Told messages and token ids; never told who sent them, so it trusts no text: a control token
written in a message is encoded as the plain characters it is made of.
"""

from __future__ import annotations

import codecs
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer, decoders

from engines.api import EngineError, Message, RequestRefused
from engines.prompt_ids import PromptIds, name_of, read_folder


class FolderTokenizer:
    """`engines.api.Tokenizer` of the model in `folder`. Raises EngineError for an unusable one."""

    def __init__(self, folder: Path) -> None:
        self._plain, settings = _read(folder)
        self._prompts = PromptIds(self._plain, settings)
        added = self._plain.get_added_tokens_decoder()
        self._special = {token.content: id for id, token in added.items() if token.special}
        self.longest_token_chars = max(map(len, self._plain.get_vocab()))
        self._names = {name: name_of(settings.get(f"{name}_token")) for name in ("bos", "eos")}
        self._template = _compile(settings.get("chat_template"))
        self._disguise = _Disguise(list(self._special))
        self._bytes_of = _TokenBytes(self._plain, frozenset(self._special.values()))

    @property
    def has_template(self) -> bool:
        """Whether chats can be encoded: base models come without."""
        return self._template is not None

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, all of it plain. Raises RequestRefused; see `PromptIds`."""
        return self._prompts.encode(text)

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a plain prompt. Raises RequestRefused; see `PromptIds`."""
        return self._prompts.encode_prompt(text)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the rendered chat, ending with the opening of the assistant's turn.

        Raises RequestRefused if the template rejects the messages (roles out of order, say).
        """
        ids: list[int] = []
        for piece in self._disguise.split(self._render(messages)):
            if piece in self._special:
                ids.append(self._special[piece])
            elif piece:
                ids += self.encode(self._disguise.take_off(piece))
        return ids

    def decoder(self) -> TextDecoder:
        """A fresh incremental decoder for one request."""
        return TextDecoder(self._bytes_of)

    def _render(self, messages: Sequence[Message]) -> str:
        if self._template is None:
            raise RequestRefused("this model has no chat template: send a plain prompt")
        turns = [
            {"role": self._disguise.put_on(m.role), "content": self._disguise.put_on(m.content)}
            for m in messages
        ]
        names = {f"{name}_token": token for name, token in self._names.items()}
        try:
            return self._template.render(messages=turns, add_generation_prompt=True, **names)
        except TemplateError as error:
            raise RequestRefused(f"the chat template refuses these messages: {error}") from error


class TextDecoder:
    """`engines.api.Decoder`: the bytes behind each token, through an incremental UTF-8 decoder."""

    def __init__(self, bytes_of: Mapping[int, bytes]) -> None:
        self._bytes_of = bytes_of
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Text that this token completes; "" for control tokens and inside a character."""
        return self._utf8.decode(self._bytes_of[token_id])

    def flush(self) -> str:
        """The unfinished rest, with U+FFFD for bytes that never became a character."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest


class _TokenBytes(dict[int, bytes]):
    """The bytes behind each token, none behind control tokens: each is looked up once."""

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        super().__init__(dict.fromkeys(skipped, b""))
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> bytes:
        found = self[token_id] = self._found(token_id)
        return found

    def _found(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None:  # a padded vocabulary has ids without a token
            return b""
        try:
            return bytes(_BYTE_OF_CHAR[char] for char in token)
        except KeyError:  # an added token stands in the vocabulary as plain text
            return bytes(token, "utf-8")


class _Disguise:
    """Hides names of control tokens in message text while the template runs.

    Each name is replaced by private-use characters that hold a random number: text that a client
    sends can't contain a disguise, since the number never leaves this process.
    """

    def __init__(self, names: list[str]) -> None:
        longest_first = sorted(names, key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        nonce = "".join(chr(0xE000 + digit) for digit in secrets.token_bytes(16))
        self._masks = {name: f"{nonce}{chr(0xE100 + i)}" for i, name in enumerate(names)}
        self._unmask = {mask: name for name, mask in self._masks.items()}
        self._mask = re.compile(f"{nonce}[\ue100-\uf8ff]")

    def put_on(self, text: str) -> str:
        """`text` without any control token's name."""
        return self._names.sub(lambda found: self._masks[found[0]], text)

    def take_off(self, text: str) -> str:
        """`text` as it was before `put_on`."""
        return self._mask.sub(lambda found: self._unmask[found[0]], text)

    def split(self, rendered: str) -> list[str]:
        """Cut at the control tokens that the template itself wrote, and keep them as pieces."""
        return re.split(f"({self._names.pattern})", rendered)


def _byte_alphabet() -> Mapping[str, int]:
    """GPT-2's byte alphabet: printable bytes stand for themselves, the others from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    moved = {chr(0x100 + i): byte for i, byte in enumerate(hidden)}
    return MappingProxyType({chr(byte): byte for byte in shown} | moved)


_BYTE_OF_CHAR = _byte_alphabet()


def _read(folder: Path) -> tuple[Tokenizer, dict[str, Any]]:
    tokenizer, settings = read_folder(folder)
    try:
        settings["chat_template"] = _template_of(folder, settings)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EngineError(f"{folder} holds no usable chat template: {error!r}") from error
    if not isinstance(tokenizer.decoder, decoders.ByteLevel):
        raise EngineError(f"{folder}: decoder {tokenizer.decoder}; only ByteLevel is served")
    return tokenizer, settings


def _template_of(folder: Path, settings: Mapping[str, Any]) -> Any:
    """Newer folders have it in a file of its own; older ones may list several with names."""
    own_file = folder / "chat_template.jinja"
    if own_file.is_file():
        return own_file.read_text(encoding="utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):
        found = {one["name"]: one["template"] for one in found}.get("default")
    return found


def _compile(source: Any) -> Template | None:
    if not isinstance(source, str):
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise EngineError(f"the chat template does not compile: {error}") from error


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(reason: str) -> NoReturn:
    raise TemplateError(reason)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)
