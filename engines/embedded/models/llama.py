"""The forward pass of Llama, Qwen2 and Qwen3 over a ragged batch of tokens.

Told token ids, positions and an attention that knows where KV lies; never told rows or pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding, silu

from engines.embedded.config import ModelConfig
from engines.embedded.layers.linear import Linear
from engines.embedded.layers.norm import rms_norm
from engines.embedded.layers.rope import Rope, rotate
from engines.embedded.rope import inverse_frequencies


class Attention(Protocol):
    """Stores k and v, attends with q; all [tokens, heads, head_dim]."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer: q, k and v are stacked into one matrix, and so are gate and up."""

    attention_norm: Tensor
    qkv: Linear
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    q_norm: Tensor | None = None  # [head_dim], with `qk_norm`
    k_norm: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """All weights, in the compute dtype. A tied `head` holds the same numbers as `embedding`."""

    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    head: Linear


class Llama:
    """A model ready to run."""

    def __init__(self, config: ModelConfig, weights: LlamaWeights) -> None:
        self._config = config
        self._weights = weights
        dtype = weights.embedding.dtype
        self._rope = Rope(inverse_frequencies(config), config.max_context, dtype)

    def hidden(self, input_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Last hidden states, before the final norm: [tokens, hidden_size]."""
        eps = self._config.rms_norm_eps
        cos, sin = self._rope.at(positions)
        x = embedding(input_ids, self._weights.embedding)
        for index, layer in enumerate(self._weights.layers):
            qkv = layer.qkv(rms_norm(x, layer.attention_norm, eps))
            mixed = attention(index, *self._split(layer, qkv, cos, sin))
            x = x + layer.output(mixed)
            gate_up = layer.gate_up(rms_norm(x, layer.mlp_norm, eps))
            gate, up = gate_up.chunk(2, dim=-1)
            x = x + layer.down(silu(gate).mul_(up))
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token in float32: [rows, vocab_size]."""
        normed = rms_norm(hidden, self._weights.norm, self._config.rms_norm_eps)
        return self._weights.head(normed).float()

    def _split(
        self, layer: LayerWeights, qkv: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        heads, kv_heads = self._config.num_heads, self._config.num_kv_heads
        by_head = qkv.view(len(qkv), heads + 2 * kv_heads, self._config.head_dim)
        to_turn = by_head[:, : heads + kv_heads]
        if layer.q_norm is not None and layer.k_norm is not None:
            to_turn = torch.cat(
                (
                    rms_norm(to_turn[:, :heads], layer.q_norm, self._config.rms_norm_eps),
                    rms_norm(to_turn[:, heads:], layer.k_norm, self._config.rms_norm_eps),
                ),
                dim=1,
            )
        turned = rotate(to_turn, cos, sin)
        return turned[:, :heads], turned[:, heads:], by_head[:, heads + kv_heads :]
