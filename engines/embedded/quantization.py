"""What hf_quant_config.json, ModelOpt's file, says of a checkpoint. Read without numpy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.embedded.config import UnsupportedError

FILE = "hf_quant_config.json"
ALGORITHM = "W4A16_AWQ"
GROUPS = (64, 128)


@dataclass(frozen=True, slots=True)
class Quantization:
    """What hf_quant_config.json says. `weights` is "" where they are not quantized."""

    weights: str
    group_size: int  # inputs that share a scale
    kv_cache: str  # "FP8" or ""
    excluded: tuple[str, ...]
    has_factors: bool = False  # of the inputs that no norm stands before

    @classmethod
    def of_folder(cls, folder: Path) -> Quantization | None:
        """None for a checkpoint that isn't quantized. Raises UnsupportedError for another kind."""
        path = folder / FILE
        if not path.is_file():
            return None
        try:
            return cls._from_json(json.loads(path.read_bytes())["quantization"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnsupportedError(f"{path}: missing or malformed {error!r}") from error

    @classmethod
    def _from_json(cls, told: Mapping[str, Any]) -> Quantization:
        weights, kv_cache = told.get("quant_algo") or "", told.get("kv_cache_quant_algo") or ""
        if weights not in ("", ALGORITHM):
            raise UnsupportedError(f"quant_algo {weights!r} is not served: only {ALGORITHM} is")
        if kv_cache not in ("", "FP8"):
            raise UnsupportedError(f"kv_cache_quant_algo {kv_cache!r} is not served: only FP8 is")
        if told.get("has_zero_point"):
            raise UnsupportedError("weights with a zero point are not served")
        group_size = int(told["group_size"]) if weights else 0
        if weights and group_size not in GROUPS:
            raise UnsupportedError(f"group_size {group_size} is not served: only {GROUPS} are")
        excluded = tuple(told.get("exclude_modules") or ())
        return cls(weights, group_size, kv_cache, excluded, told.get("pre_quant_scale") is True)
