"""A dense forward pass of the three families, in parts: what calibration and quality run.

Plain torch, one whole window of tokens at a time, no cache. Hidden states and norms are float32;
products take their weights' dtype, as engines do that compute in bf16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engines.build.shape import Shape
from engines.build.weights import Layer


@dataclass(frozen=True, slots=True)
class Rope:
    """cos and sin of each position [window, head_dim / 2]."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, shape: Shape, window: int) -> Rope:
        """For positions 0..window-1."""
        angles = torch.outer(torch.arange(window, dtype=torch.float32), frequencies(shape))
        return cls(angles.cos(), angles.sin())

    def turn(self, heads: Tensor) -> Tensor:
        """Of heads [..., window, head_dim]: halves (a, b) -> (a cos - b sin, b cos + a sin)."""
        a, b = heads.chunk(2, dim=-1)
        return torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), dim=-1)


def frequencies(shape: Shape) -> Tensor:
    """Radians a token for each pair of a head's numbers."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    plain: Tensor = shape.rope_theta**-exponents
    scaling = shape.rope_scaling
    if not scaling:
        return plain
    # Llama 3: long waves are stretched by `factor`, short ones kept, those between are blended.
    factor, low, high = (
        float(scaling[key]) for key in ("factor", "low_freq_factor", "high_freq_factor")
    )
    turns = plain * (float(scaling["original_max_position_embeddings"]) / (2 * math.pi))
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * (kept + (1 - kept) / factor)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Over the last dimension, in float32."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b in float32; computed in the weight's dtype."""
    y = functional.linear(x.to(weight.dtype), weight).float()
    return y if bias is None else y + bias


def keys_and_values(shape: Shape, layer: Layer, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
    """What the KV cache would hold for normed inputs x: [seqs, kv_heads, window, head_dim]."""
    k = _heads(project(layer, "self_attn.k_proj", x), shape.head_dim)
    v = _heads(project(layer, "self_attn.v_proj", x), shape.head_dim)
    if shape.has_head_norms:
        k = rms_norm(k, layer.norms["self_attn.k_norm"], shape.rms_norm_eps)
    return rope.turn(k), v


def attention(shape: Shape, layer: Layer, x: Tensor, k: Tensor, v: Tensor, rope: Rope) -> Tensor:
    """What goes into o_proj, of normed inputs x [seqs, window, hidden]."""
    q = _heads(project(layer, "self_attn.q_proj", x), shape.head_dim)
    if shape.has_head_norms:
        q = rms_norm(q, layer.norms["self_attn.q_norm"], shape.rms_norm_eps)
    y = functional.scaled_dot_product_attention(
        rope.turn(q), k, v, is_causal=True, enable_gqa=shape.num_kv_heads != shape.num_heads
    )
    return y.transpose(1, 2).flatten(2)


def gated(layer: Layer, x: Tensor) -> Tensor:
    """What goes into down_proj, of normed inputs x."""
    gate, up = (project(layer, f"mlp.{name}", x) for name in ("gate_proj", "up_proj"))
    return functional.silu(gate) * up


def run_layer(shape: Shape, layer: Layer, hidden: Tensor, rope: Rope) -> Tensor:
    """One whole layer over hidden states [seqs, window, hidden]."""
    x = rms_norm(hidden, layer.norms["input_layernorm"], shape.rms_norm_eps)
    k, v = keys_and_values(shape, layer, x, rope)
    y = attention(shape, layer, x, k, v, rope)
    hidden = hidden + project(layer, "self_attn.o_proj", y)
    x = rms_norm(hidden, layer.norms["post_attention_layernorm"], shape.rms_norm_eps)
    return hidden + project(layer, "mlp.down_proj", gated(layer, x))


def project(layer: Layer, name: str, x: Tensor) -> Tensor:
    """One of the layer's matrices, with its factors and its bias."""
    if name in layer.factors:
        x = x * layer.factors[name]
    return linear(x, layer.weights[name], layer.biases.get(name))


def _heads(x: Tensor, head_dim: int) -> Tensor:
    return x.reshape(*x.shape[:-1], -1, head_dim).transpose(1, 2)
