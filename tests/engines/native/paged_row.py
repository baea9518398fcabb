"""A row's K and V in native pages, what it attends to, and the same in float64."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.kernels import attention as twin
from engines.kernels.native import module

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    head_dim: int
    page_size: int


SHAPES = (
    Shape(9, 3, 64, 16),
    Shape(4, 2, 16, 4),
    Shape(14, 2, 64, 16),
    Shape(2, 2, 128, 16),
    Shape(8, 1, 48, 6),
    Shape(5, 1, 80, 2),
    Shape(16, 2, 32, 40),
    Shape(3, 3, 16, 160),
    Shape(40, 2, 32, 16),
    Shape(3, 1, 96, 48),
)


@dataclass
class Row:
    """One row's pages, its K and V, and queries at all its positions."""

    shape: Shape
    numbers: str
    tokens: int
    isa: str
    scales: tuple[float, float] = (1.0, 1.0)
    seed: int = 0
    layer: int = 1
    use_vbmi: bool = True
    memory: NDArray[np.uint8] = field(init=False)

    def __post_init__(self) -> None:
        shape, chance = self.shape, np.random.default_rng(self.seed)
        num_pages = -(-self.tokens // shape.page_size)
        self.pages: NDArray[np.int64] = chance.permutation(num_pages + 3)[:num_pages].astype(
            np.int64
        )
        self.q, self.k, self.v = (
            chance.standard_normal((self.tokens, heads, shape.head_dim), dtype=np.float32)
            for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
        )
        self.q *= 2
        width = 2 if self.numbers == "bfloat16" else 1
        page = 2 * 2 * shape.kv_heads * shape.page_size * shape.head_dim * width
        self.memory = np.full((num_pages + 3) * page, 0xFF, np.uint8)  # NaN, as either number
        self.native = module.PagedAttention(
            self.isa, self.memory, 2, shape.kv_heads, shape.head_dim, shape.page_size, self.numbers,
            [1.0, self.scales[0]], [1.0, self.scales[1]], self.use_vbmi,
        )  # fmt: skip

    def slots(self) -> NDArray[np.int64]:
        offsets = np.arange(self.tokens)
        size = self.shape.page_size
        slots: NDArray[np.int64] = self.pages[offsets // size] * size + offsets % size
        return slots

    def store(self, first: int, last: int) -> None:
        part = slice(first, last)
        self.native.store(self.layer, self.slots()[part], self.k[part], self.v[part])

    def attend(self, first: int, last: int, *, split: bool = False) -> Floats:
        """Queries first..last-1 in one call, in a step that ends with the last of them."""
        out = np.full_like(self.q[first:last], -1)
        lens = np.array([last]), np.array([last - first])
        self.native.attend(self.layer, self.q[first:last], self.pages[None], *lens, out, split)
        return out

    def in_chunks(self, *cuts: int) -> Floats:
        """A prompt as it is computed: each chunk is stored, and then attends."""
        self.memory.fill(0xFF)
        parts, edges = [], (0, *cuts, self.tokens)
        for first, last in itertools.pairwise(edges):
            self.store(first, last)
            parts.append(self.attend(first, last))
        return np.concatenate(parts)

    def exact(self) -> Tensor:
        """What the twin says in float64, of what pages make of K and V."""
        stored = [
            rounded(torch.from_numpy(side), self.numbers, scale)
            for side, scale in zip((self.k, self.v), self.scales, strict=True)
        ]
        shape = self.shape
        pages = torch.zeros(
            len(self.pages), 2, shape.kv_heads, shape.page_size, shape.head_dim
        ).double()
        for token in range(self.tokens):
            for side in range(2):
                at = token // shape.page_size, side, slice(None), token % shape.page_size
                pages[at] = stored[side][token]
        table = torch.arange(len(self.pages))
        return twin.attend(torch.from_numpy(self.q).double(), pages, table, self.tokens)


def rounded(values: Tensor, numbers: str, scale: float) -> Tensor:
    if numbers == "bfloat16":
        return values.bfloat16().double()
    return twin.to_e4m3(values, scale).double() * scale
