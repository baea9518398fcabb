"""The llama forward pass over a ragged batch of tokens.

Told token ids, positions and an attention that knows where KV lies; never told rows or pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch.nn.functional import embedding, linear, silu

from engines.embedded.layers.norm import rms_norm
from engines.embedded.layers.rope import Rope, rotate

if TYPE_CHECKING:
    from torch import Tensor

    from engines.embedded.config import ModelConfig


class Attention(Protocol):
    """Stores k and v, attends with q; all [tokens, heads, head_dim]."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Matrices are [out, in]; q, k and v are stacked, and so are gate and up."""

    attention_norm: Tensor
    qkv: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """All weights, in the compute dtype. `head` is `embedding` itself when they are tied."""

    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    head: Tensor


class Llama:
    """A model ready to run."""

    def __init__(self, config: ModelConfig, weights: LlamaWeights) -> None:
        self._config = config
        self._weights = weights
        dtype = weights.embedding.dtype
        self._rope = Rope(config.head_dim, config.rope_theta, config.max_context, dtype)

    def hidden(self, input_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Last hidden states, before the final norm: [tokens, hidden_size]."""
        eps = self._config.rms_norm_eps
        cos, sin = self._rope.at(positions)
        x = embedding(input_ids, self._weights.embedding)
        for index, layer in enumerate(self._weights.layers):
            qkv = linear(rms_norm(x, layer.attention_norm, eps), layer.qkv)
            mixed = attention(index, *self._split(qkv, cos, sin))
            x = x + linear(mixed, layer.output)
            gate_up = linear(rms_norm(x, layer.mlp_norm, eps), layer.gate_up)
            gate, up = gate_up.chunk(2, dim=-1)
            x = x + linear(silu(gate).mul_(up), layer.down)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token in float32: [rows, vocab_size]."""
        normed = rms_norm(hidden, self._weights.norm, self._config.rms_norm_eps)
        return linear(normed, self._weights.head).float()

    def _split(self, qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads, kv_heads = self._config.num_heads, self._config.num_kv_heads
        by_head = qkv.view(len(qkv), heads + 2 * kv_heads, self._config.head_dim)
        turned = rotate(by_head[:, : heads + kv_heads], cos, sin)
        return turned[:, :heads], turned[:, heads:], by_head[:, heads + kv_heads :]
