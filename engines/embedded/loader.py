"""Safetensors files -> LlamaWeights in the compute dtype, with fused matrices.

Told a folder in Hugging Face layout. Anything missing or misshapen is an UnsupportedError.
"""

from __future__ import annotations

import hashlib
import math
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engines.embedded.config import EngineConfig, ModelConfig, UnsupportedError
from engines.embedded.kv import Scales
from engines.embedded.layers.linear import Linear
from engines.embedded.models.llama import LayerWeights, LlamaWeights


def load(folder: Path, config: ModelConfig, dtype: torch.dtype) -> LlamaWeights:
    """Read every weight of the model once."""
    with ExitStack() as stack:
        reader = _Reader(folder, stack, dtype)
        hidden = config.hidden_size
        embedding = reader.matrix("model.embed_tokens", config.vocab_size, hidden)
        tied = config.tied_embeddings
        head = embedding if tied else reader.matrix("lm_head", config.vocab_size, hidden)
        return LlamaWeights(
            embedding=embedding,
            layers=[_layer(reader, config, i) for i in range(config.num_layers)],
            norm=reader.vector("model.norm", hidden),
            head=Linear(head),
        )


def kv_scales(folder: Path, model: ModelConfig, engine: EngineConfig) -> Scales:
    """The scales of KV pages: all 1, or those that were calibrated with the checkpoint."""
    if engine.kv_scales == "unit":
        return Scales.unit(model.num_layers)
    with ExitStack() as stack:
        reader = _Reader(folder, stack, torch.float32)
        attention = [f"model.layers.{i}.self_attn" for i in range(model.num_layers)]
        names = [
            f"{layer}.{of}" for of in ("k_proj.k_scale", "v_proj.v_scale") for layer in attention
        ]
        values = reader.scales(names)
    return Scales(values[: model.num_layers], values[model.num_layers :])


def revision(folder: Path) -> str:
    """SHA-256 in hex over the configuration and all weights: what a cached page depends on."""
    digest = hashlib.sha256()
    for path in [folder / "config.json", *_weight_files(folder)]:
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _layer(reader: _Reader, config: ModelConfig, index: int) -> LayerWeights:
    prefix = f"model.layers.{index}"
    hidden, inner = config.hidden_size, config.intermediate_size
    attention = f"{prefix}.self_attn"
    q_size = config.num_heads * config.head_dim
    has_norms, of_head = config.qk_norm, config.head_dim
    return LayerWeights(
        attention_norm=reader.vector(f"{prefix}.input_layernorm", hidden),
        qkv=_qkv(reader, config, attention),
        q_norm=reader.vector(f"{attention}.q_norm", of_head) if has_norms else None,
        k_norm=reader.vector(f"{attention}.k_norm", of_head) if has_norms else None,
        output=Linear(reader.matrix(f"{attention}.o_proj", hidden, q_size)),
        mlp_norm=reader.vector(f"{prefix}.post_attention_layernorm", hidden),
        gate_up=Linear(
            torch.cat(
                [reader.matrix(f"{prefix}.mlp.{of}_proj", inner, hidden) for of in ("gate", "up")]
            )
        ),
        down=Linear(reader.matrix(f"{prefix}.mlp.down_proj", hidden, inner)),
    )


def _qkv(reader: _Reader, config: ModelConfig, attention: str) -> Linear:
    q_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim
    sizes = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
    names = {f"{attention}.{of}": size for of, size in sizes.items()}
    weights = [reader.matrix(name, size, config.hidden_size) for name, size in names.items()]
    biases = [reader.bias(name, size) for name, size in names.items() if config.qkv_bias]
    return Linear(torch.cat(weights), torch.cat(biases) if biases else None)


class _Reader:
    """Finds tensors by name over all files of a checkpoint."""

    def __init__(self, folder: Path, stack: ExitStack, dtype: torch.dtype) -> None:
        self._dtype = dtype
        try:
            files = [
                stack.enter_context(safe_open(path, framework="pt"))
                for path in _weight_files(folder)
            ]
        except (OSError, SafetensorError) as error:
            raise UnsupportedError(f"cannot read the weights in {folder}: {error}") from error
        self._file_of = {name: file for file in files for name in file.keys()}  # noqa: SIM118 - not iterable itself

    def matrix(self, name: str, rows: int, columns: int) -> Tensor:
        return self._tensor(f"{name}.weight", (rows, columns))

    def vector(self, name: str, size: int) -> Tensor:
        return self._tensor(f"{name}.weight", (size,))

    def bias(self, name: str, size: int) -> Tensor:
        return self._tensor(f"{name}.bias", (size,))

    def scales(self, names: list[str]) -> tuple[float, ...]:
        """Single numbers, all of them or none."""
        if missing := [name for name in names if name not in self._file_of]:
            raise UnsupportedError(
                f"the checkpoint has no KV scales: {', '.join(missing)} are missing; "
                "option 'kv_scales' = \"unit\" needs none"
            )
        return tuple(self._scale(name) for name in names)

    def _scale(self, name: str) -> float:
        tensor: Tensor = self._file_of[name].get_tensor(name)
        value = float(tensor) if tensor.numel() == 1 else math.nan
        if not 0 < value < math.inf:
            raise UnsupportedError(f"KV scale {name!r} is not one positive number")
        return value

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in self._file_of:
            raise UnsupportedError(f"the checkpoint has no tensor {name!r}")
        tensor: Tensor = self._file_of[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise UnsupportedError(f"tensor {name!r} is {tuple(tensor.shape)} instead of {shape}")
        # Copied, for what stays of a mapped file would keep all of it in memory.
        return tensor.to(self._dtype, copy=True)


def _weight_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UnsupportedError(f"{folder} holds no .safetensors file")
    return files
