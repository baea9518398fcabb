"""The shape of a model that can be built: what config.json says of a Llama, Qwen2 or Qwen3 folder.

Torch-free, so that the check of an artefact may use it too. Every fault is an UnsuitableModel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines import families, regular


class UnsuitableModel(Exception):
    """Why this folder can't be built from, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape(families.Sizes):
    """A model's sizes and family. Its biases are those that its files hold."""

    family: str
    rope_scaling: Mapping[str, Any]  # as a config.json tells it; {}: none

    @property
    def q_size(self) -> int:
        """Rows of q_proj, columns of o_proj."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Rows of k_proj and of v_proj."""
        return self.num_kv_heads * self.head_dim

    @property
    def has_head_norms(self) -> bool:
        """Whether each head of Q and K is normalised."""
        return self.family == "qwen3"

    def linears(self) -> dict[str, tuple[int, int]]:
        """The matrices of a layer by their names in it, as (out, in)."""
        hidden, inner = self.hidden_size, self.intermediate_size
        return {
            "self_attn.q_proj": (self.q_size, hidden),
            "self_attn.k_proj": (self.kv_size, hidden),
            "self_attn.v_proj": (self.kv_size, hidden),
            "self_attn.o_proj": (hidden, self.q_size),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }

    def norms(self) -> dict[str, int]:
        """The norms of a layer by their names in it."""
        names = {
            "input_layernorm": self.hidden_size,
            "post_attention_layernorm": self.hidden_size,
        }
        if self.has_head_norms:
            names |= {"self_attn.q_norm": self.head_dim, "self_attn.k_norm": self.head_dim}
        return names


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file. Raises UnsuitableModel."""
    try:
        value = json.loads(regular.read(path))
    except OSError as error:
        raise UnsuitableModel(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UnsuitableModel(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise UnsuitableModel(f"{path} holds no JSON object")
    return value


def shape_of(folder: Path, *, quantised: bool = False) -> Shape:
    """The shape of the model in a folder, which may be `quantised`. Raises UnsuitableModel."""
    config = read_json(folder / "config.json")
    try:
        if wrong := list(families.faults(config, free=families.BIASES)):
            raise UnsuitableModel(f"{folder}/config.json: {'; '.join(wrong)}")
        families.rope_scaling(config)
        shape = Shape(
            **families.sizes(config),
            family=config["model_type"],
            rope_scaling=families.scaling_told(config),
        )
    except families.MALFORMED as error:
        raise UnsuitableModel(f"{folder}/config.json: missing or malformed {error}") from error
    if not quantised and (method := config.get("quantization_config")) is not None:
        kind = method.get("quant_method") if isinstance(method, dict) else method
        raise UnsuitableModel(f"{folder} is quantised already ({kind}); name what it was made of")
    return shape
