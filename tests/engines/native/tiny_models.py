"""Random models of each family and kind of weights, small and wide enough to mean something."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

HIDDEN, INNER, HEAD_DIM, HEADS, KV_HEADS, VOCAB, LAYERS = 128, 192, 32, 4, 2, 300, 2
KINDS = ["llama", "qwen2", "qwen3", "int4", "int4 mixed"]


def tiny_model(folder: Path, kind: str, *, max_context: int = 256) -> Path:
    """A model's folder. "int4": in 4 bits, as ModelOpt does; "mixed": the first layer isn't."""
    family = kind if kind.startswith("qwen") else "llama"
    config: dict[str, Any] = {
        "architectures": [f"{family.capitalize()}ForCausalLM"],
        "model_type": family,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": max_context,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": family != "qwen2",
        "eos_token_id": VOCAB - 1,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tensors = _weights(family)
    if kind.startswith("int4"):
        tensors = in_4_bits(tensors, skip="layers.0." if "mixed" in kind else "none")
        write_awq(folder)
    save_file(tensors, folder / "model.safetensors")
    return folder


def _weights(family: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).div(shape[-1] ** 0.5).bfloat16()

    def near_one(size: int) -> Tensor:
        return (1 + 0.2 * torch.randn(size, generator=generator)).bfloat16()

    q_size, kv_size = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    found = {"model.embed_tokens.weight": random(VOCAB, HIDDEN) * 8}
    found["model.norm.weight"] = near_one(HIDDEN)
    if family == "qwen2":
        found["lm_head.weight"] = random(VOCAB, HIDDEN)
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        for name, size in (("q", q_size), ("k", kv_size), ("v", kv_size)):
            found[f"{layer}.self_attn.{name}_proj.weight"] = random(size, HIDDEN)
            if family == "qwen2":
                found[f"{layer}.self_attn.{name}_proj.bias"] = random(size) * 4
            if family == "qwen3" and name != "v":
                found[f"{layer}.self_attn.{name}_norm.weight"] = near_one(HEAD_DIM)
        found[f"{layer}.self_attn.o_proj.weight"] = random(HIDDEN, q_size)
        found[f"{layer}.mlp.gate_proj.weight"] = random(INNER, HIDDEN)
        found[f"{layer}.mlp.up_proj.weight"] = random(INNER, HIDDEN)
        found[f"{layer}.mlp.down_proj.weight"] = random(HIDDEN, INNER)
        found[f"{layer}.input_layernorm.weight"] = near_one(HIDDEN)
        found[f"{layer}.post_attention_layernorm.weight"] = near_one(HIDDEN)
    return {name: tensor.contiguous() for name, tensor in found.items()}


def write_awq(folder: Path) -> None:
    """What says that the weights are in 4 bits."""
    told = {"quant_algo": "W4A16_AWQ", "group_size": 64, "has_zero_point": False}
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": told}))


def in_4_bits(tensors: dict[str, Tensor], skip: str = "none") -> dict[str, Tensor]:
    """Rounded, as ModelOpt lays it out; but for tensors whose names hold `skip`."""
    found = {}
    for name, tensor in tensors.items():
        if "_proj.weight" not in name or skip in name:
            found[name] = tensor
            continue
        layer = name.removesuffix(".weight")
        groups = tensor.float().view(len(tensor), -1, 64)
        scales = groups.abs().amax(dim=2) / 7
        values = (groups / scales[:, :, None]).round().int().view(tensor.shape)
        packed = (values[0::2] & 15) | (values[1::2] & 15) << 4
        found[name] = packed.to(torch.uint8)
        found[f"{layer}.weight_scale"] = scales
        if "o_proj" in layer or "down_proj" in layer:
            found[f"{layer}.pre_quant_scale"] = torch.linspace(0.7, 1.4, tensor.shape[1]).bfloat16()
    return found
