"""A checkpoint as its two JSON files tell of it: the weights' numbers, the cache's, its sizes.

Cheap: nothing else is read. What the tensors hold is `engines.build.preflight`'s to look at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.build.shape import UnsuitableModel, read_json

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
KV_NAMES = {"": "bf16", "FP8": "fp8", "NVFP4": "nvfp4"}  # of the checkpoint: ours


class BadCheckpoint(Exception):
    """Why a folder can't be read as a checkpoint, in one sentence."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Sizes are 0 where config.json doesn't tell them. Lengths are in tokens."""

    family: str
    weights: str  # quant_algo; "": not quantised
    kv: str  # kv_cache_quant_algo; "": the model's own numbers
    group_size: int
    is_described: bool  # by a builder: hf_quant_config.json or build.json is there
    fits_fp8: bool  # K and V, as far as the build measured them
    num_layers: int
    num_heads: int
    num_kv_heads: int
    num_experts: int
    max_context: int
    has_window: bool  # some layers see the newest tokens only
    has_state: bool  # some layers keep a state in place of K and V

    @property
    def own_kv(self) -> str:
        """What its cache is held in if nothing else is asked for: `bf16`, `fp8`, `nvfp4`, or "".

        "": in something that isn't known here.
        """
        return KV_NAMES.get(self.kv, "")


def read(folder: Path) -> Checkpoint:
    """The checkpoint in a folder. Raises BadCheckpoint."""
    try:
        config = read_json(folder / "config.json")
        told = _object(folder / "hf_quant_config.json").get("quantization", {})
        built = _object(folder / "build.json")
    except UnsuitableModel as error:
        raise BadCheckpoint(str(error)) from error
    if not isinstance(told, dict):
        raise BadCheckpoint(f"{folder}/hf_quant_config.json: quantization is no object")
    text = config.get("text_config")  # of a model that sees, too
    sizes = text if isinstance(text, dict) else config
    return Checkpoint(
        family=str(config.get("model_type", "")),
        weights=str(told.get("quant_algo") or _method(config)),
        kv=str(told.get("kv_cache_quant_algo") or ""),
        group_size=_number(told, "group_size"),
        is_described=bool(told or built),
        fits_fp8=_fits(built),
        num_layers=_number(sizes, "num_hidden_layers"),
        num_heads=_number(sizes, "num_attention_heads"),
        num_kv_heads=_number(sizes, "num_key_value_heads") or _number(sizes, "num_attention_heads"),
        num_experts=max(_number(sizes, key) for key in EXPERTS),
        max_context=_number(sizes, "max_position_embeddings"),
        has_window=bool(_number(sizes, "sliding_window"))
        and sizes.get("use_sliding_window") is not False,
        has_state=any("mamba" in key or "ssm" in key or "linear_attn" in key for key in sizes),
    )


def _object(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _method(config: Mapping[str, Any]) -> str:
    """How a folder is quantised that has no hf_quant_config.json."""
    found = config.get("quantization_config")
    if not isinstance(found, dict):
        return ""
    method = str(found.get("quant_method", "in another way"))
    return "FP8_BLOCK_SCALES" if method == "fp8" and "weight_block_size" in found else method


def _fits(built: Mapping[str, Any]) -> bool:
    kv = built.get("kv")
    found = kv.get("unit_scale") if isinstance(kv, dict) else None
    return not (isinstance(found, dict) and found.get("fits") is False)


def _number(told: Mapping[str, Any], key: str) -> int:
    value = told.get(key)
    return value if type(value) is int and value > 0 else 0
