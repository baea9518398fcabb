"""NVIDIA's ModelOpt as the quantiser: the reference that ours is measured against.

Needs the extra `modelopt`. Its export holds the same tensors under the same names; config.json and
the tokenizer's files are ours, for those of transformers 5 don't load everywhere.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from engines.build.plan import Options
from engines.build.tensorfile import join


def export(source: Path, target: Path, options: Options, windows: list[list[int]]) -> None:
    """Write the quantised weights of a folder to one safetensors file."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from transformers import AutoModelForCausalLM

    with warnings.catch_warnings(), tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
        model.config.architectures = [type(model).__name__]  # its export needs them
        model = mtq.quantize(model, _config(mtq, options), _reading(windows))
        export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=scratch)
        join(sorted(Path(scratch).glob("*.safetensors")), target)


def _config(mtq: Any, options: Options) -> dict[str, Any]:
    if options.weights == "int4-awq":
        config: dict[str, Any] = deepcopy(mtq.INT4_AWQ_CFG)
        for entry in config["quant_cfg"]:
            if entry.get("quantizer_name") == "*weight_quantizer":
                entry["cfg"]["block_sizes"] = {-1: options.group, "type": "static"}
    else:
        config = {"quant_cfg": [{"quantizer_name": "*", "enable": False}], "algorithm": "max"}
    if options.kv == "fp8":
        config["quant_cfg"] += deepcopy(mtq.FP8_KV_CFG["quant_cfg"])
    return config


def _reading(windows: list[list[int]]) -> Callable[[Any], None]:
    def read(model: Any) -> None:
        with torch.inference_mode():
            for window in windows:
                model(torch.tensor([window]))

    return read
