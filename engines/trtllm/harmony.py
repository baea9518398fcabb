"""gpt-oss models: their chats go a way of their own in TensorRT-LLM, named harmony.

It takes a salt there and hands it to nobody: what is cached of one tenant's prompts is found for
another's. A checkpoint tells what it is; where there is none to look at, its name has to do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engines.build.shape import UnsuitableModel, read_json

FAMILY = "gpt_oss"  # in config.json
NO_SALT = "TensorRT-LLM hands no salt on for gpt-oss models: tenants would be given each other's"
TO_SAY = (
    'prefixes. Say "off" if it reuses none (`enable_block_reuse: false`), "shared-accepted" if '
    'tenants may notice each other\'s prompts, or, if it is another model, "salted"'
)
_NAMED = re.compile(r"gpt[-_. ]?oss", re.IGNORECASE)


def faults(model: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What a model that is named so leaves unsaid, as (key, reason).

    `model` is its table in the configuration; a value that had a fault of its own is None.
    """
    path, trt = model.get("path") or "", model.get("trt")
    if model.get("cache", "") != "" or (path and os.path.exists(path)) or not is_named(model):
        return
    if trt is None or trt.block_reuse is True:
        yield "cache", f"its name says gpt-oss. {NO_SALT} {TO_SAY}"
    elif trt.guard is True:
        yield (
            "trt.guard",
            "tells tenants apart by salts, which a gpt-oss's requests don't carry",
        )


def is_named(model: Mapping[str, Any]) -> bool:
    """Whether a model is called a gpt-oss, by us, by its server or by a folder."""
    folders = (Path(str(model.get(key) or "")).name for key in ("path", "tokenizer"))
    names = [model.get("id"), model.get("upstream_model"), *folders]
    return any(isinstance(name, str) and _NAMED.search(name) for name in names)


def is_one(folder: Path) -> bool:
    """Whether a folder's config.json says so."""
    try:
        return bool(read_json(folder / "config.json").get("model_type") == FAMILY)
    except UnsuitableModel:
        return False
