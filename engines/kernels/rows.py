"""What happens to single rows between the products: the plain torch of `native/rows.h`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from engines.kernels.linear import Int8, int8_rows


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, for x [rows, k]."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def to_bf16(x: Tensor, factors: Tensor | None = None) -> Tensor:
    """bfloat16, of x times `factors` [k]."""
    return (x if factors is None else x * factors).bfloat16()


def to_int8(x: Tensor, factors: Tensor | None = None) -> Int8:
    """int8 with one scale for each 64 of k, of x times `factors` [k]."""
    return int8_rows(x if factors is None else x * factors)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """gate * sigmoid(gate) * up."""
    return silu(gate) * up


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [rows, heads, dim] turned by cos and sin [rows, dim / 2]: halves (a, b) of each head."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def argmax(x: Tensor) -> Tensor:
    """The first highest of each row; -1 if one is NaN or the highest infinite."""
    highest, first = x.max(-1)  # NaN is the highest of all
    return torch.where(highest.isfinite(), first, -1)
