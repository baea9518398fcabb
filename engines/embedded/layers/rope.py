"""Rotary position embedding, in the half-split order of Hugging Face checkpoints."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.embedded.rope import Frequencies


class Rope:
    """cos and sin of every position, each [max_context, head_dim], computed once in float32."""

    def __init__(self, frequencies: Frequencies, max_context: int, dtype: torch.dtype) -> None:
        turns = torch.from_numpy(frequencies)
        angles = torch.outer(torch.arange(max_context).float(), turns)
        cos, sin = angles.cos(), angles.sin()
        self._cos = torch.cat((cos, cos), dim=-1).to(dtype)
        self._sin = torch.cat((-sin, sin), dim=-1).to(dtype)  # the sign that `rotate` needs

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and signed sin at `positions` [tokens], each [tokens, 1, head_dim]."""
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x [tokens, heads, head_dim]: halves (a, b) -> (a cos - b sin, b cos + a sin)."""
    return x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin
