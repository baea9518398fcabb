"""The files of ModelOpt's unified checkpoint beside its weights: what readers are told of them.

Torch-free: told a source folder and what was made of it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from engines.build.shape import Shape, read_json

EXCLUDED = ("lm_head", "model.embed_tokens")
# The layout's name and version, by which readers know it; build.json says who made the artefact.
LAYOUT = {"name": "modelopt", "version": "0.47.0"}
# Whatever turns text into tokens and back, as it was.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)


def hf_quant_config(weights: str, kv: str, group: int) -> dict[str, Any]:
    """What hf_quant_config.json holds."""
    told: dict[str, Any] = {
        "quant_algo": "W4A16_AWQ" if weights == "int4-awq" else None,
        "kv_cache_quant_algo": "FP8" if kv == "fp8" else None,
    }
    if weights == "int4-awq":
        told |= {"group_size": group, "has_zero_point": False, "pre_quant_scale": True}
        told["exclude_modules"] = list(EXCLUDED)
    else:
        told["quantized_layers"] = {}
    return {"producer": LAYOUT, "quantization": told}


def model_config(folder: Path, shape: Shape, weights: str, kv: str) -> dict[str, Any]:
    """The source's config.json with what was made of it.

    transformers 4 and TensorRT-LLM read `rope_theta` at top level, transformers 5 in
    `rope_parameters`; whoever finds neither takes 10,000 and says nothing. So both stand there.
    """
    config = read_json(folder / "config.json")
    config["rope_theta"] = shape.rope_theta
    config["rope_parameters"] = {
        "rope_type": "default",
        **shape.rope_scaling,
        "rope_theta": shape.rope_theta,
    }
    config["rope_scaling"] = dict(shape.rope_scaling) or None
    config["head_dim"] = shape.head_dim
    config["torch_dtype"] = "bfloat16"
    config.pop("dtype", None)
    if weights == "bf16" and kv == "bf16":
        return config
    method: dict[str, Any] = {"ignore": list(EXCLUDED) if weights == "int4-awq" else []}
    if weights == "int4-awq":
        method["quant_algo"] = "W4A16_AWQ"
    if kv == "fp8":
        method["kv_cache_scheme"] = {"dynamic": False, "num_bits": 8, "type": "float"}
    config["quantization_config"] = method | {"producer": LAYOUT, "quant_method": "modelopt"}
    return config


def copy_tokenizer(source: Path, folder: Path) -> None:
    """The files of text, unchanged."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Readable, and the same bytes for the same value."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
