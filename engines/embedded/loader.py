"""A checkpoint -> LlamaWeights in the compute dtype, with fused matrices.

4-bit weights are loaded as the numbers that they stand for: the twin of the native path.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.embedded.checkpoint import Checkpoint
from engines.embedded.config import ModelConfig
from engines.embedded.int4 import Factors, Int4, common_factors
from engines.embedded.layers.linear import Linear
from engines.embedded.models.llama import LayerWeights, LlamaWeights


def load(checkpoint: Checkpoint, config: ModelConfig, dtype: torch.dtype) -> LlamaWeights:
    """Read every weight of the model once."""
    reader = _Reader(checkpoint, dtype)
    hidden = config.hidden_size
    embedding, _ = reader.matrix("model.embed_tokens", config.vocab_size, hidden)
    return LlamaWeights(
        embedding=embedding,
        layers=[_layer(reader, config, i) for i in range(config.num_layers)],
        norm=reader.vector("model.norm.weight", hidden),
        head=Linear(embedding)
        if config.tied_embeddings
        else reader.linear({"lm_head": config.vocab_size}, hidden),
    )


def _layer(reader: _Reader, config: ModelConfig, index: int) -> LayerWeights:
    prefix = f"model.layers.{index}"
    hidden, inner = config.hidden_size, config.intermediate_size
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    q_size = config.num_heads * config.head_dim
    has_norms, of_head = config.qk_norm, config.head_dim
    return LayerWeights(
        attention_norm=reader.vector(f"{prefix}.input_layernorm.weight", hidden),
        qkv=_qkv(reader, config, attention),
        q_norm=reader.vector(f"{attention}.q_norm.weight", of_head) if has_norms else None,
        k_norm=reader.vector(f"{attention}.k_norm.weight", of_head) if has_norms else None,
        output=reader.linear({f"{attention}.o_proj": hidden}, q_size),
        mlp_norm=reader.vector(f"{prefix}.post_attention_layernorm.weight", hidden),
        gate_up=reader.linear({f"{mlp}.gate_proj": inner, f"{mlp}.up_proj": inner}, hidden),
        down=reader.linear({f"{mlp}.down_proj": hidden}, inner),
    )


def _qkv(reader: _Reader, config: ModelConfig, attention: str) -> Linear:
    q_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim
    sizes = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
    names = {f"{attention}.{of}": size for of, size in sizes.items()}
    return reader.linear(names, config.hidden_size, has_bias=config.qkv_bias)


class _Reader:
    """Tensors of a checkpoint, copied: what stays of a mapped file would keep it all in memory."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype

    def linear(self, outputs: dict[str, int], inputs: int, *, has_bias: bool = False) -> Linear:
        """One layer that computes the outputs of several (name -> how many) of the same input."""
        parts = [self.matrix(name, size, inputs) for name, size in outputs.items()]
        bias = [self.vector(f"{name}.bias", size) for name, size in outputs.items() if has_bias]
        factors = common_factors(list(outputs), [factors for _, factors in parts])
        return Linear(
            torch.cat([weight for weight, _ in parts]),
            torch.cat(bias) if bias else None,
            None if factors is None else self._tensor(factors),
        )

    def matrix(self, name: str, rows: int, columns: int) -> tuple[Tensor, Factors]:
        found = self._checkpoint.matrix(name, rows, columns)
        if isinstance(found, Int4):
            return self._tensor(found.float32()), found.factors
        if found.dtype == "BF16" and self._dtype == torch.bfloat16:
            return torch.from_numpy(found.data.copy()).view(torch.bfloat16), None
        return self._tensor(found.float32), None

    def vector(self, name: str, size: int) -> Tensor:
        return self._tensor(self._checkpoint.vector(name, size))

    def _tensor(self, values: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(values).to(self._dtype)
