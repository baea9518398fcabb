"""A checkpoint that says nothing of its KV cache, which then holds what the model computes.

TensorRT-LLM goes by `hf_quant_config.json`: where that names FP8, no setting brings BF16 back. So
a folder is served that has the same files by links, and those two anew which name the format. The
scales of K and V stay in the weights, unread, as TensorRT-LLM leaves them for FP8 too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engines import regular

TOLD, CONFIG = "hf_quant_config.json", "config.json"
RECORD = "build.json"  # the hashes of the files as they were built: of others than these


def changed(folder: Path) -> dict[str, str]:
    """The files that name the cache's format, without it. {}: none does, so serve the folder."""
    files = {}
    told, config = _read(folder / TOLD), _read(folder / CONFIG)
    if _object(told, "quantization").pop("kv_cache_quant_algo", None):
        files[TOLD] = _text(told)
    if _object(config, "quantization_config").pop("kv_cache_scheme", None):
        files[CONFIG] = _text(config)
    return files


def links(folder: Path, files: dict[str, str]) -> dict[str, str]:
    """All other files of the checkpoint: what each links to."""
    return {
        path.name: str(path.absolute())
        for path in sorted(folder.iterdir())
        if path.name not in (*files, RECORD) and not path.name.startswith(".")
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(regular.read(path))
    except (OSError, ValueError):  # none, or not here, or not one: the check tells of that
        return {}
    return found if isinstance(found, dict) else {}


def _object(inside: dict[str, Any], key: str) -> dict[str, Any]:
    found = inside.get(key)
    return found if isinstance(found, dict) else {}


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
