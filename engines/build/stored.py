"""A layer under the names that it has in the checkpoint, and back."""

from __future__ import annotations

from safetensors import safe_open
from torch import Tensor

from engines.build.layers import Built
from engines.build.packing import packed_tensors, unpacked
from engines.build.weights import Layer


def tensors_of(prefix: str, built: Built) -> dict[str, Tensor]:
    """A built layer under the names of the checkpoint."""
    found: dict[str, Tensor] = {}
    for name, one in built.rounded.items():
        found |= packed_tensors(prefix + name, one)
    for name, factors in built.factors.items():
        found[f"{prefix}{name}.pre_quant_scale"] = factors.bfloat16()
    return found | _small_tensors(prefix, built.norms, built.biases)


def plain_tensors(prefix: str, layer: Layer) -> dict[str, Tensor]:
    """A layer that stays bf16."""
    found = {f"{prefix}{name}.weight": w.bfloat16() for name, w in layer.weights.items()}
    return found | _small_tensors(prefix, layer.norms, layer.biases)


def _small_tensors(
    prefix: str, norms: dict[str, Tensor], biases: dict[str, Tensor]
) -> dict[str, Tensor]:
    found = {f"{prefix}{name}.weight": norm.bfloat16() for name, norm in norms.items()}
    return found | {f"{prefix}{name}.bias": bias.bfloat16() for name, bias in biases.items()}


def built_from(prefix: str, tensors: dict[str, Tensor], source: Layer, group: int) -> Built:
    """The layer that `tensors_of` was told."""
    return Built(
        rounded={name: unpacked(prefix + name, tensors, group) for name in source.weights},
        norms={name: tensors[f"{prefix}{name}.weight"].float() for name in source.norms},
        factors={
            name: tensors[f"{prefix}{name}.pre_quant_scale"].float()
            for name in source.weights
            if f"{prefix}{name}.pre_quant_scale" in tensors
        },
        biases=source.biases,
    )


def layer_of(file: safe_open, index: int) -> dict[str, Tensor]:
    """The tensors of one layer of a checkpoint."""
    prefix = f"model.layers.{index}."
    names: list[str] = file.keys()  # type: ignore[no-untyped-call]
    mine = [name for name in names if name.startswith(prefix)]
    return {name: file.get_tensor(name) for name in mine}  # type: ignore[no-untyped-call]
