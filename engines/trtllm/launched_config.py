"""The configuration of a launcher in a pod: one model, with what a launch reads of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import to_builtins

from engines.trtllm.commands import Served
from engines.trtllm.settings import ENGINE, TrtSettings

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def config_text(model: Served) -> str:
    """As TOML. Its servers run where it is read: no container is named."""
    return "\n".join(_lines(model)) + "\n"


def _lines(model: Served) -> Iterator[str]:
    said = {"id": model.id, "engine": ENGINE, "path": model.path}
    is_alone = len(model.urls) == 1
    yield "[[models]]"
    yield from _table(said | ({"url": model.urls[0]} if is_alone else {}))
    if not is_alone:
        for url, guard_url in zip(model.urls, model.guard_urls, strict=True):
            yield "[[models.servers]]"
            yield from _table({"url": url, "guard_url": guard_url})
    defaults = to_builtins(TrtSettings())
    trt = {
        key: value
        for key, value in to_builtins(model.trt).items()
        if value != defaults[key] and key != "image"
    }
    yield "[models.trt]"
    yield from _table(trt)


def _table(found: Mapping[str, Any]) -> Iterator[str]:
    return (f"{_key(key)} = {_value(value)}" for key, value in found.items())


def _key(text: str) -> str:
    return text if _BARE.match(text) else _string(text)


def _value(value: Any) -> str:
    """Of what TOML and JSON both have. A number's text is the same in both."""
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_table(value))} }}" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value)


def _string(text: str) -> str:
    """A JSON string is a TOML string too, but for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
