"""What config.json and hf_quant_config.json say of one artefact: that they agree, and are read.

Pure; torch-free. Yields faults, as `preflight` tells them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from engines.build.plan import GROUPS
from engines.build.shape import Shape
from engines.families import scaling_of

CONFIG, TOLD = "config.json", "hf_quant_config.json"
Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: the tensor, file or key, and the reason."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


def rope_faults(config: Object, shape: Shape) -> Iterator[Fault]:
    """TensorRT-LLM and transformers 4 read the top level only."""
    nested = config.get("rope_parameters") or {}
    if "rope_theta" not in config:
        yield Fault(
            f"{CONFIG}: rope_theta",
            "stands in rope_parameters only; TensorRT-LLM and transformers 4 would take 10000",
        )
    elif nested and nested.get("rope_theta") != shape.rope_theta:
        yield Fault(f"{CONFIG}: rope_parameters", "says another rope_theta than the top level")
    if nested and scaling_of(nested) != scaling_of(config.get("rope_scaling") or {}):
        yield Fault(
            f"{CONFIG}: rope_scaling",
            "isn't what rope_parameters says; TensorRT-LLM and transformers 4 read rope_scaling",
        )


def agreement_faults(config: Object, told: Object) -> Iterator[Fault]:
    """TensorRT-LLM goes by hf_quant_config.json, others by what config.json says of the same."""
    where = f"{CONFIG}: quantization_config"
    method = config.get("quantization_config")
    if not told:
        if method:
            yield Fault(TOLD, f"is missing, and {where} is there: BF16 would be read")
    elif not method:
        yield Fault(where, f"is missing, {TOLD} is there")
    elif not isinstance(method, dict):
        yield Fault(where, "is no object")
    else:
        if method.get("quant_algo") != told.get("quant_algo"):
            yield Fault(
                where, f"says quant_algo {method.get('quant_algo')!r}, and {TOLD} another one"
            )
        if method.get("kv_cache_scheme") and told.get("kv_cache_quant_algo") != "FP8":
            yield Fault(where, f"says a kv_cache_scheme, and {TOLD} no FP8 cache")


def quantization_faults(told: Object, shape: Shape) -> Iterator[Fault]:
    """What hf_quant_config.json says of weights and cache."""
    if (cache := told.get("kv_cache_quant_algo")) not in (None, "FP8"):
        why = f"{cache!r} is not read: only FP8 is"
        if cache == "NVFP4":
            why += "; TensorRT-LLM has such a cache on Blackwell, our own engine has none"
        yield Fault(f"{TOLD}: kv_cache_quant_algo", why)
    algorithm, group = told.get("quant_algo"), told.get("group_size")
    if algorithm is None:
        return
    if algorithm != "W4A16_AWQ":
        yield Fault(f"{TOLD}: quant_algo", f"{algorithm!r} is not read: only W4A16_AWQ is")
    if type(group) is not int or group not in GROUPS:
        yield Fault(f"{TOLD}: group_size", f"{group!r}: TensorRT-LLM's kernels take 64 or 128")
    else:
        for name, (_, columns) in shape.linears().items():
            if columns % group:
                yield Fault(f"{TOLD}: group_size", f"{group} doesn't divide {name}'s {columns}")
    if told.get("has_zero_point"):
        yield Fault(f"{TOLD}: has_zero_point", "weights with a zero point are read as without")
    if told.get("pre_quant_scale") is not True:
        yield Fault(f"{TOLD}: pre_quant_scale", "must be true: o_proj and down_proj have one")
    yield from _exclusion_faults(told.get("exclude_modules"), shape)


def _exclusion_faults(excluded: Any, shape: Shape) -> Iterator[Fault]:
    where = f"{TOLD}: exclude_modules"
    if not isinstance(excluded, list) or not all(isinstance(one, str) for one in excluded):
        yield Fault(where, "must be a list of names, lm_head among them")
        return
    if not any(fnmatchcase("lm_head", pattern) for pattern in excluded):
        yield Fault(where, "lacks lm_head: it would be read as if it were in 4 bits")
    layers = (
        f"model.layers.{i}.{name}" for i in range(shape.num_layers) for name in shape.linears()
    )
    for name in layers:
        if any(fnmatchcase(name, pattern) for pattern in excluded):
            yield Fault(where, f"names {name}: only a model that is in 4 bits as a whole is read")
            return
