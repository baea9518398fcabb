"""TOML from a file becomes tables, or one sentence. Whoever walks the tables comes to an end."""

from __future__ import annotations

import re
import tomllib
from typing import Any

MAX_BYTES = 32 * 1024 * 1024
MAX_DEPTH = 64
_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
# A key that stands where a statement begins, with more parts than that. Reading it costs the square
# of their number, so it is looked for before.
_DEEP_KEY = re.compile(rf"^[ \t\[]*(?:{_PART}[ \t]*\.[ \t]*){{{MAX_DEPTH}}}", re.MULTILINE)


class BadText(Exception):
    """The text can't be used; the message says why."""


def tables(text: bytes | str) -> dict[str, Any]:
    """The tables of a text. Raises BadText."""
    if len(text) > MAX_BYTES:
        raise BadText(f"larger than {MAX_BYTES >> 20} MiB")
    try:
        text = text if isinstance(text, str) else text.decode()
        _refuse_deep_keys(text)
        data = tomllib.loads(text)
    except UnicodeDecodeError:
        raise BadText("not text in UTF-8") from None
    except RecursionError:
        raise BadText(f"not valid TOML: more than {MAX_DEPTH} levels deep") from None
    except ValueError as fault:  # tomllib's own, and what int() says of thousands of digits
        raise BadText(f"not valid TOML: {fault}") from None
    if not _is_shallow(data):
        raise BadText(f"more than {MAX_DEPTH} levels deep")
    return data


def _refuse_deep_keys(text: str) -> None:
    if deep := _DEEP_KEY.search(text):
        line = text.count("\n", 0, deep.start()) + 1
        raise BadText(f"line {line}: more than {MAX_DEPTH} levels deep")


def _is_shallow(data: dict[str, Any]) -> bool:
    level: list[Any] = [data]
    for _ in range(MAX_DEPTH):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
        if not level:
            return True
    return False
