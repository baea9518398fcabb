"""A model's sizes, and what the families differ in, read from the JSON of a config.json. Pure.

Llama, Qwen2 and Qwen3 are one network. Qwen2 adds a bias to q, k and v; Qwen3 normalises each head
of q and k before they turn; Llama 3.1 and later stretch the slow turns of RoPE. Whoever builds an
artefact and whoever serves one read these here, so that neither takes what the other refuses.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
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
BIASES = frozenset({"attention_bias", "mlp_bias"})
FULL = "full_attention"
ROPE_KINDS = ("default", "llama3")
# What reading a config raises for what is missing or malformed.
MALFORMED = (KeyError, TypeError, ValueError, ArithmeticError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What all families have. Lengths are in tokens, sizes in elements.

    `head_dim` is told apart: `num_heads * head_dim` may be another size than `hidden_size`.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_context: int
    tied_embeddings: bool


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Of kind "llama3": wavelengths are in tokens, the context is that of the first training."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


def faults(config: Json, *, free: Collection[str] = ()) -> Iterator[str]:
    """Why a model is refused, a sentence a reason. Keys that are `free` may say anything."""
    name = config.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        known = ", ".join(map(repr, FAMILIES))
        yield f"model_type {name!r} is not supported: {known} are"
        return
    given = {**_rope(config), **config}  # partial_rotary_factor may stand in either
    for key, value in WANTED.items():
        if key not in free and given.get(key, value) != value:
            yield f"{key} {given[key]!r} is not supported: only {value!r} is"
    for kind in sorted(set(config.get("layer_types") or [FULL]) - {FULL}):
        yield f"layer_types {kind!r} is not supported: only {FULL!r} is"
    if (kind := _rope_kind(config)) not in ROPE_KINDS:
        known = " and ".join(map(repr, ROPE_KINDS))
        yield f"rope scaling {kind!r} is not supported: only {known} are"


def sizes(config: Json) -> dict[str, Any]:
    """The fields of Sizes. Raises one of MALFORMED for what is missing, malformed or can't be."""
    num_heads, hidden_size = _count(config, "num_attention_heads"), _count(config, "hidden_size")
    family = FAMILIES[config["model_type"]]
    found = {
        "vocab_size": _count(config, "vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": _count(config, "intermediate_size"),
        "num_layers": _count(config, "num_hidden_layers"),
        "num_heads": num_heads,
        "num_kv_heads": _count(config, "num_key_value_heads", num_heads),
        "head_dim": _count(config, "head_dim", family.head_dim or hidden_size // num_heads),
        "rms_norm_eps": float(config["rms_norm_eps"]),
        "rope_theta": rope_theta(config),
        "max_context": _count(config, "max_position_embeddings"),
    }
    for name, value in found.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name}: {value}")
    heads, kv_heads, head_dim = found["num_heads"], found["num_kv_heads"], found["head_dim"]
    if heads % kv_heads or head_dim % 2:
        raise ValueError(
            f"heads: {heads} of {head_dim} and {kv_heads} of K and V don't fit together"
        )
    return found | {"tied_embeddings": bool(config.get("tie_word_embeddings", False))}


def _count(config: Json, key: str, otherwise: int | None = None) -> int:
    """A whole number above 0; 2.5 layers would be read as 2, which is another model."""
    value = config[key] if otherwise is None else config.get(key) or otherwise
    if type(value) is not int or value < 1:
        raise ValueError(f"{key}: {value!r} is no whole number above 0")
    return value


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


def scaling_of(told: Json) -> dict[str, Any]:
    """What `rope_scaling` or `rope_parameters` does to the frequencies; {}: nothing."""
    given = dict(told)
    kind = given.pop("rope_type", given.pop("type", "default"))
    given.pop("rope_theta", None)
    return {} if kind == "default" else {"rope_type": kind, **given}


def scaling_told(config: Json) -> dict[str, Any]:
    """What is done to the frequencies, under transformers 4's names; {}: nothing."""
    return scaling_of(_rope(config))


def _rope(config: Json) -> Json:
    places = [config.get(key) or {} for key in ("rope_scaling", "rope_parameters")]
    for told in places:
        if not isinstance(told, Mapping):
            raise TypeError(f"rope scaling: {told!r} is no object")
    return places[0] or places[1]


def _rope_kind(config: Json) -> Any:
    return scaling_told(config).get("rope_type", "default")
