"""YAML written: keys in the order given, each with the reason for it above. Byte-stable.

Nothing is written that a reader of YAML 1.1, as PyYAML, would take for something else: `no`,
`1e5`, `12:30` and paths with a colon are quoted.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

WIDTH = 100
INDENT = "  "
# What no version of YAML reads as anything but a string begins so, and is none of these.
PLAIN = re.compile(r"^[A-Za-z/][A-Za-z0-9_./-]*\Z")
WORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "nan"))
# What no document can hold as it is; U+2028 and U+2029 are line breaks to YAML 1.1.
UNPRINTABLE = re.compile(
    r"[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
ESCAPED = re.compile(rf'["\\]|{UNPRINTABLE.pattern}')
SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


class Key(NamedTuple):
    """A key and its value: a scalar, a list, a mapping, or more keys. `why` is told above it."""

    name: str
    value: Any
    why: str = ""


Keys = tuple[Key, ...]


def yaml_text(keys: Sequence[Key], head: str = "") -> str:
    """A whole document. Raises TypeError or ValueError for what no setting can be."""
    return "\n".join([*_comment(head, ""), "---", *_mapping(keys, "")]) + "\n"


def plain(value: Any) -> Any:
    """What a reader of the document has, of a document's keys or of any value in it."""
    keys = _keys(value)
    if keys is not None:
        return {key.name: plain(key.value) for key in keys}
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _keys(value: Any) -> Keys | None:
    """The keys of a value that has some. None: it is a list or a scalar."""
    if isinstance(value, Mapping):
        return tuple(Key(name, one) for name, one in value.items())
    if isinstance(value, tuple) and value and all(isinstance(one, Key) for one in value):
        return value
    return None


def _mapping(keys: Sequence[Key], indent: str) -> Iterator[str]:
    for key in keys:
        yield from _comment(key.why, indent)
        yield from _entry(f"{indent}{scalar(key.name)}:", key.value, indent + INDENT)


def _entry(start: str, value: Any, inside: str) -> Iterator[str]:
    """The line of a key or of an item, and those of what it holds."""
    keys = _keys(value)
    if isinstance(value, str) and _is_block(value):
        yield f"{start} |"
        yield from (f"{inside}{line}" if line else "" for line in value[:-1].split("\n"))
    elif keys is None and not isinstance(value, (list, tuple)):
        yield f"{start} {scalar(value)}"
    elif not value:
        yield f"{start} {'[]' if keys is None else '{}'}"
    elif keys is None:
        yield start
        for one in value:
            yield from _entry(f"{inside}-", one, inside + INDENT)
    else:
        lines = list(_mapping(keys, inside))
        if start.endswith("-") and not keys[0].why:  # an item begins with its first key
            lines[0] = f"{start} {lines[0].lstrip(' ')}"
        else:
            yield start
        yield from lines


def _comment(text: str, indent: str) -> Iterator[str]:
    for paragraph in (UNPRINTABLE.sub("?", line) for line in text.splitlines()):
        width = WIDTH - len(indent) - 2
        for line in textwrap.wrap(paragraph, width, break_long_words=False) or [""]:
            yield f"{indent}# {line}".rstrip()


def scalar(value: Any) -> str:
    """One value on one line, which every reader takes for what it is."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str):
        return _text(value)
    raise TypeError(f"no setting is a {type(value).__name__}")


def _number(value: float) -> str:
    """YAML 1.1 takes 1e-05 for text: a number has a point."""
    mantissa, e, exponent = repr(value).partition("e")
    if mantissa.lstrip("-") in ("inf", "nan"):
        raise ValueError(f"{mantissa} is no number that a setting can have")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}{e}{exponent}"


def _is_block(text: str) -> bool:
    """Whether a text can stand as its lines, indented: each ends, and what is blank is empty."""
    *lines, rest = text.split("\n")
    return (
        rest == ""
        and len(lines) > 1
        and lines[0][:1] not in ("", " ")
        and lines[-1] != ""
        and all(not line or line.strip(" ") for line in lines)
        and not any(map(UNPRINTABLE.search, lines))
    )


def _text(value: str) -> str:
    if PLAIN.match(value) and value.lower() not in WORDS:
        return value
    return f'"{ESCAPED.sub(_escape, value)}"'


def _escape(found: re.Match[str]) -> str:
    character, code = found[0], ord(found[0])
    if 0xD800 <= code < 0xE000:
        raise ValueError("half of a surrogate pair is no character")
    if character in SHORT:
        return SHORT[character]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
