"""Ways to spoil a good artefact of the tiny Llama, and what must be said of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]
LAYER = "model.layers.1."
ATTENTION = f"{LAYER}self_attn."


def factors(names: str, values: list[float]) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        for name, value in zip(names.split(), values, strict=True):
            tensors[f"{LAYER}{name}.pre_quant_scale"] = torch.full((64,), value).bfloat16()

    return change


TENSOR_FAULTS: dict[str, tuple[Callable[[Tensors], Any], str, str]] = {
    "unfolded, shared": (
        factors("self_attn.q_proj self_attn.k_proj self_attn.v_proj", [2, 2, 2]),
        f"{ATTENTION}q_proj.pre_quant_scale",
        "not folded into the norm",
    ),
    "unfolded, each its own": (
        factors("mlp.gate_proj mlp.up_proj", [2, 3]),
        f"{LAYER}mlp.up_proj.pre_quant_scale",
        "gate_proj, up_proj don't share one",
    ),
    "unfolded, one of three": (
        factors("self_attn.k_proj", [2]),
        f"{ATTENTION}k_proj.pre_quant_scale",
        "q_proj, k_proj, v_proj don't share one",
    ),
    "no factors": (
        lambda t: t.pop(f"{ATTENTION}o_proj.pre_quant_scale"),
        f"{ATTENTION}o_proj.pre_quant_scale",
        "is missing",
    ),
    "no scales": (
        lambda t: t.pop(f"{LAYER}mlp.up_proj.weight_scale"),
        f"{LAYER}mlp.up_proj.weight_scale",
        "is missing",
    ),
    "scales in bf16": (
        lambda t: t.update(
            {f"{ATTENTION}v_proj.weight_scale": t[f"{ATTENTION}v_proj.weight_scale"].bfloat16()}
        ),
        f"{ATTENTION}v_proj.weight_scale",
        "is BF16 (32, 1) instead of F32 (32, 1)",
    ),
    "not packed": (
        lambda t: t.update({f"{ATTENTION}q_proj.weight": torch.zeros(64, 64).bfloat16()}),
        f"{ATTENTION}q_proj.weight",
        "is BF16 (64, 64) instead of U8 (32, 64)",
    ),
    "a norm is missing": (
        lambda t: t.pop(f"{LAYER}input_layernorm.weight"),
        f"{LAYER}input_layernorm.weight",
        "is missing",
    ),
    "K over 448": (
        lambda t: t.update({f"{ATTENTION}k_proj.k_scale": torch.tensor(1.25)}),
        f"{ATTENTION}k_proj.k_scale",
        "K reaches 560",
    ),
    "a head that is tied": (
        lambda t: t.update({"lm_head.weight": torch.zeros(300, 64).bfloat16()}),
        "lm_head.weight",
        "tie_word_embeddings is true",
    ),
    "a NaN among scales": (
        lambda t: t[f"{LAYER}mlp.up_proj.weight_scale"].view(-1)[5:6].fill_(math.nan),
        f"{LAYER}mlp.up_proj.weight_scale",
        "holds a NaN or an infinity",
    ),
    "an infinite embedding": (
        lambda t: t["model.embed_tokens.weight"][299, 63:].fill_(-math.inf),
        "model.embed_tokens.weight",
        "holds a NaN or an infinity",
    ),
    "a factor of 0": (
        lambda t: t[f"{LAYER}mlp.down_proj.pre_quant_scale"][7:8].fill_(0),
        f"{LAYER}mlp.down_proj.pre_quant_scale",
        "is 0 somewhere",
    ),
    "K's scale alone": (
        lambda t: t.pop(f"{ATTENTION}v_proj.v_scale"),
        f"{ATTENTION}v_proj.v_scale",
        "all of them, or none",
    ),
    "a scale below 0": (
        lambda t: t.update({f"{ATTENTION}v_proj.v_scale": torch.tensor(-0.5)}),
        f"{ATTENTION}v_proj.v_scale",
        "is -0.5 instead of a number above 0",
    ),
    "a bias that Llama has none of": (
        lambda t: t.update({f"{ATTENTION}q_proj.bias": torch.zeros(64).bfloat16()}),
        f"{ATTENTION}q_proj.bias",
        "has no place in this model",
    ),
    "a zero point's tensor": (
        lambda t: t.update({f"{ATTENTION}q_proj.weight_zero_point": torch.zeros(64, 1)}),
        f"{ATTENTION}q_proj.weight_zero_point",
        "has no place in this model",
    ),
    "a layer too many": (
        lambda t: t.update({"model.layers.3.input_layernorm.weight": torch.ones(64).bfloat16()}),
        "model.layers.3.input_layernorm.weight",
        "has no place in this model",
    ),
    "a scale that is none": (
        lambda t: t.update({f"{ATTENTION}v_proj.v_scale": torch.zeros(2)}),
        f"{ATTENTION}v_proj.v_scale",
        "instead of one F32 number",
    ),
}


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
JSON_FAULTS: dict[str, tuple[str, Callable[[dict[str, Any]], Any], str]] = {
    "rope_theta nested only": (
        "config.json",
        lambda c: c.pop("rope_theta"),
        "TensorRT-LLM and transformers 4 would take 10000",
    ),
    "two rope_thetas": (
        "config.json",
        lambda c: c["rope_parameters"].update(rope_theta=5.0),
        "another rope_theta",
    ),
    "no quantization_config": (
        "config.json",
        lambda c: c.pop("quantization_config"),
        "quantization_config: is missing",
    ),
    "a head that should be there": (
        "config.json",
        lambda c: c.update(tie_word_embeddings=False),
        "lm_head.weight: is missing",
    ),
    "a group of 32": (
        "hf_quant_config.json",
        lambda c: c["quantization"].update(group_size=32),
        "32: TensorRT-LLM's kernels take 64 or 128",
    ),
    "a group that doesn't divide": (
        "hf_quant_config.json",
        lambda c: c["quantization"].update(group_size=128),
        "128 doesn't divide self_attn.q_proj's 64",
    ),
    "a zero point": (
        "hf_quant_config.json",
        lambda c: c["quantization"].update(has_zero_point=True),
        "zero point",
    ),
    "another algorithm": (
        "hf_quant_config.json",
        lambda c: c["quantization"].update(quant_algo="NVFP4"),
        "'NVFP4' is not read",
    ),
    "no factors said": (
        "hf_quant_config.json",
        lambda c: c["quantization"].update(pre_quant_scale=False),
        "must be true",
    ),
    "KV scales unread": (
        "hf_quant_config.json",
        lambda c: c["quantization"].update(kv_cache_quant_algo=None),
        "isn't FP8: it would be unread",
    ),
    "a group that is no whole number": (
        "hf_quant_config.json",
        lambda c: c["quantization"].update(group_size=64.0),
        "64.0: TensorRT-LLM's kernels take 64 or 128",
    ),
    "another cache": (
        "hf_quant_config.json",
        lambda c: c["quantization"].update(kv_cache_quant_algo="NVFP4"),
        "'NVFP4' is not read: only FP8 is",
    ),
    "a head in 4 bits": (
        "hf_quant_config.json",
        lambda c: c["quantization"].update(exclude_modules=[]),
        "lacks lm_head",
    ),
    "a layer that isn't in 4 bits": (
        "hf_quant_config.json",
        lambda c: c["quantization"]["exclude_modules"].append("*layers.2.mlp*"),
        "names model.layers.2.mlp.gate_proj",
    ),
    "two algorithms": (
        "config.json",
        lambda c: c["quantization_config"].update(quant_algo="FP8"),
        "says quant_algo 'FP8'",
    ),
    "a cache that one file says": (
        "config.json",
        lambda c: c.update(quantization_config=["W4A16_AWQ"]),
        "is no object",
    ),
    "rope scaling nested only": (
        "config.json",
        lambda c: c["rope_parameters"].update(LLAMA3),
        "isn't what rope_parameters says",
    ),
    "rope scaling that is none": (
        "config.json",
        lambda c: c.update(rope_scaling="llama3"),
        "'llama3' is no object",
    ),
    "no heads": (
        "config.json",
        lambda c: c.update(num_attention_heads=0, head_dim=None),
        "config.json",
    ),
    "endless layers": (
        "config.json",
        lambda c: c.update(num_hidden_layers=math.inf),
        "missing or malformed",
    ),
    "an eps below 0": (
        "config.json",
        lambda c: c.update(rms_norm_eps=-1e-5),
        "rms_norm_eps: -1e-05",
    ),
    "fewer layers": (
        "config.json",
        lambda c: c.update(num_hidden_layers=2),
        "model.layers.2.input_layernorm.weight: has no place",
    ),
    "digests that are none": (
        "build.json",
        lambda c: c.update(files=["config.json"]),
        "files: is no object",
    ),
    "no algorithm at all": (
        "hf_quant_config.json",
        lambda c: c["quantization"].pop("quant_algo"),
        "has no `quantization.quant_algo`",
    ),
}
