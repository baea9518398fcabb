"""What a type expects and what was found instead, in an operator's words."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from msgspec import Meta

from runtime.config.report import did_you_mean
from runtime.config.variables import Expanded

MAX_SHOWN = 40
PRIVATE = "private"  # in a Meta's `extra`: a wrong value may be a secret in the wrong place


def expected(kind: Any) -> str:
    """`a whole number from 1 to 65535`, for a type that may be annotated."""
    base, metas = _base(kind), _metas(kind)
    if told := next((meta.description for meta in metas if meta.description), ""):
        return told
    if get_origin(base) is Literal:
        return "one of " + ", ".join(f'"{value}"' for value in get_args(base))
    if base in (int, float):
        return _number("a whole number" if base is int else "a number", metas)
    if get_origin(base) is tuple:
        return "a list"
    if get_origin(base) is dict:
        return "a table"
    return WORDS.get(base, "another value")


WORDS: dict[Any, str] = {
    str: "a text",
    bool: "true or false",
    datetime.date: "a date, such as 2026-11-01",
    NoneType: "nothing",
}


def found(data: object, kind: Any = None) -> str:
    """`the text "8787"`, `8787`, `a table`."""
    if isinstance(data, str) and any((meta.extra or {}).get(PRIVATE) for meta in _metas(kind)):
        return "another text (not shown: it may be the secret itself)"
    if isinstance(data, str):
        quoted = json.dumps(data, ensure_ascii=False)
        return f"the text {_cut(data.shown if isinstance(data, Expanded) else quoted)}"
    if isinstance(data, bool):
        return "true" if data else "false"
    if isinstance(data, dict | list):
        return "a table" if isinstance(data, dict) else "a list"
    if isinstance(data, datetime.date | datetime.time):
        return f"the {'date' if isinstance(data, datetime.date) else 'time'} {data.isoformat()}"
    is_long = (
        isinstance(data, int) and data.bit_length() > 64
    )  # Python may not write it in decimals
    return _cut(hex(data) if is_long else str(data))  # type: ignore[arg-type]


def suggestion(kind: Any, data: object) -> str:
    """A did-you-mean among the values that a type allows, or nothing."""
    allowed = get_args(kind) if get_origin(kind) is Literal else ()
    return did_you_mean(data, allowed, '"') if isinstance(data, str) else ""


def _number(noun: str, metas: Sequence[Meta]) -> str:
    bounds: dict[str, float] = {}
    for meta in metas:
        bounds |= {k: v for k in ("ge", "gt", "le", "lt") if (v := getattr(meta, k)) is not None}
    if {"ge", "le"} <= bounds.keys():
        return f"{noun} from {bounds['ge']} to {bounds['le']}"
    words = {"ge": "of {} or more", "gt": "over {}", "le": "up to {}", "lt": "under {}"}
    return " ".join([noun, *(word.format(bounds[k]) for k, word in words.items() if k in bounds)])


def _base(kind: Any) -> Any:
    return get_args(kind)[0] if _metas(kind) else kind


def _metas(kind: Any) -> tuple[Meta, ...]:
    return tuple(meta for meta in getattr(kind, "__metadata__", ()) if isinstance(meta, Meta))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"
