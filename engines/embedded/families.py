"""What the families of models differ in, read from the JSON of a config.json. Decisions only.

Llama, Qwen2 and Qwen3 are one network. Qwen2 adds a bias to q, k and v; Qwen3 normalises each head
of q and k before they turn; Llama 3.1 and later stretch the slow turns of RoPE.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Family:
    """What a `model_type` says that no key of its config does."""

    qkv_bias: bool = False
    qk_norm: bool = False
    head_dim: int | None = None  # where the config has none; else hidden size by heads


FAMILIES = {
    "llama": Family(),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qk_norm=True, head_dim=128),
}
# What each of these must be, where it is given.
WANTED = {
    "hidden_act": "silu",
    "attention_bias": False,  # it would be one of the output projection too
    "mlp_bias": False,
    "use_sliding_window": False,  # `sliding_window` beside it then means nothing
    "partial_rotary_factor": 1,
}
FULL = "full_attention"
ROPE_KINDS = ("default", "llama3")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Of kind "llama3": wavelengths are in tokens, the context is that of the first training."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


def faults(config: Json) -> Iterator[str]:
    """Why a model isn't served, a sentence a reason."""
    if (name := config.get("model_type")) not in FAMILIES:
        known = ", ".join(map(repr, FAMILIES))
        yield f"model_type {name!r} is not served: {known} are"
        return
    given = {**_rope(config), **config}  # partial_rotary_factor may stand in either
    for key, value in WANTED.items():
        if given.get(key, value) != value:
            yield f"{key} {given[key]!r} is not served: only {value!r} is"
    for kind in sorted(set(config.get("layer_types") or [FULL]) - {FULL}):
        yield f"layer_types {kind!r} is not served: only {FULL!r} is"
    if (kind := _rope_kind(config)) not in ROPE_KINDS:
        yield f"rope scaling {kind!r} is not served: only {' and '.join(map(repr, ROPE_KINDS))} are"


def rope_theta(config: Json) -> float:
    """transformers 4 writes it at top level, transformers 5 inside rope_parameters."""
    nested = config.get("rope_parameters") or {}
    return float(config["rope_theta"] if "rope_theta" in config else nested["rope_theta"])


def rope_scaling(config: Json) -> RopeScaling | None:
    """None where there is none. Raises KeyError or ValueError for what is missing or malformed."""
    if _rope_kind(config) == "default":
        return None
    told = _rope(config)
    scaling = RopeScaling(
        factor=float(told["factor"]),
        low_freq_factor=float(told["low_freq_factor"]),
        high_freq_factor=float(told["high_freq_factor"]),
        original_context=int(told["original_max_position_embeddings"]),
    )
    if not (0 < scaling.low_freq_factor < scaling.high_freq_factor and scaling.factor > 0):
        raise ValueError(f"rope scaling: {scaling}")
    return scaling


def _rope(config: Json) -> Json:
    told = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(told, Mapping):
        raise TypeError(f"rope scaling: {told!r} is no object")
    return told


def _rope_kind(config: Json) -> Any:
    told = _rope(config)
    return told.get("rope_type", told.get("type", "default"))
