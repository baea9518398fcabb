"""The shape of a model that can be built: what config.json says of a Llama, Qwen2 or Qwen3 folder.

Torch-free, so that the check of an artefact may use it too. Every fault is an UnsuitableModel.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FAMILIES = ("llama", "qwen2", "qwen3")
ROPE_KINDS = ("default", "llama3")


class UnsuitableModel(Exception):
    """Why this folder can't be built from, in one sentence."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes are in elements. A model's biases are those that its files hold."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any]  # {}: none
    max_context: int
    tied_embeddings: bool

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
        value = json.loads(path.read_bytes())
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
    for key in ("rope_scaling", "rope_parameters"):
        if not isinstance(config.get(key) or {}, dict):
            raise UnsuitableModel(f"{folder}/config.json: {key} is no object")
    _refuse_others(config)
    if not quantised and (method := config.get("quantization_config")) is not None:
        kind = method.get("quant_method") if isinstance(method, dict) else method
        raise UnsuitableModel(f"{folder} is quantised already ({kind}); name what it was made of")
    try:
        shape = _shape(config)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise UnsuitableModel(f"{folder}/config.json: missing or malformed {error}") from error
    _refuse_impossible(folder, shape)
    return shape


def _shape(config: Mapping[str, Any]) -> Shape:
    num_heads = int(config["num_attention_heads"])
    hidden_size = int(config["hidden_size"])
    return Shape(
        family=config["model_type"],
        vocab_size=int(config["vocab_size"]),
        hidden_size=hidden_size,
        intermediate_size=int(config["intermediate_size"]),
        num_layers=int(config["num_hidden_layers"]),
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=int(config.get("head_dim") or hidden_size // num_heads),
        rms_norm_eps=float(config["rms_norm_eps"]),
        rope_theta=rope_theta(config),
        rope_scaling=rope_scaling(config),
        max_context=int(config["max_position_embeddings"]),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
    )


def _refuse_impossible(folder: Path, shape: Shape) -> None:
    for name, value in asdict(shape).items():
        if isinstance(value, int | float) and not 0 < value < math.inf and value is not False:
            raise UnsuitableModel(f"{folder}/config.json: {name} is {value}")
    if shape.num_heads % shape.num_kv_heads or shape.head_dim % 2:
        raise UnsuitableModel(
            f"{folder}/config.json: {shape.num_heads} heads of {shape.head_dim} and "
            f"{shape.num_kv_heads} of K and V don't fit together"
        )


def rope_theta(config: Mapping[str, Any]) -> float:
    """transformers 4 writes it at top level, transformers 5 inside rope_parameters."""
    nested = config.get("rope_parameters") or {}
    return float(config["rope_theta"] if "rope_theta" in config else nested["rope_theta"])


def scaling_of(told: Mapping[str, Any]) -> dict[str, Any]:
    """What `rope_scaling` or `rope_parameters` does to the frequencies; {}: nothing."""
    given = dict(told)
    kind = given.pop("rope_type", given.pop("type", "default"))
    given.pop("rope_theta", None)
    return {} if kind == "default" else {"rope_type": kind, **given}


def rope_scaling(config: Mapping[str, Any]) -> dict[str, Any]:
    """What is done to the frequencies, under transformers 4's names; {}: nothing."""
    return scaling_of(config.get("rope_scaling") or config.get("rope_parameters") or {})


def _refuse_others(config: Mapping[str, Any]) -> None:
    if (family := config.get("model_type")) not in FAMILIES:
        raise UnsuitableModel(
            f"model_type {family!r} can't be built from: only {', '.join(FAMILIES)} can"
        )
    if (act := config.get("hidden_act", "silu")) != "silu":
        raise UnsuitableModel(f"hidden_act {act!r} can't be built from: only 'silu' can")
    if config.get("use_sliding_window"):
        raise UnsuitableModel("use_sliding_window is on; only full attention can be built from")
    kind = rope_scaling(config).get("rope_type", "default")
    if kind not in ROPE_KINDS:
        raise UnsuitableModel(f"rope scaling {kind!r} can't be built from")
