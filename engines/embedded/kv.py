"""The tensors behind the pages. Written by slot, read by block table, a layer at a time.

Told page ids and slots that were checked before; never told seqs, domains or tags.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from engines.embedded.config import EngineConfig, ModelConfig, UnsupportedError, page_bytes

TORCH_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class KvCache(Protocol):
    """What attention needs of a cache; a quantised one is to join behind the same two calls."""

    num_pages: int

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store k and v, each [tokens, kv_heads, head_dim], at `slots` [tokens]."""
        ...

    def read(self, layer: int, block_tables: Tensor) -> tuple[Tensor, Tensor]:
        """K and V of whole pages, each [kv_heads, rows, max_pages * page_size, head_dim]."""
        ...


class PlainKv:
    """Unquantised pages, [kv_heads, num_pages, page_size, head_dim] for K and for V of each layer.

    Heads come first so that a gather of pages is already grouped by head.
    """

    def __init__(self, model: ModelConfig, engine: EngineConfig) -> None:
        self._dtype = TORCH_DTYPES[engine.kv_dtype]
        self._compute_dtype = TORCH_DTYPES[engine.dtype]
        self.num_pages = engine.kv_memory_bytes // page_bytes(model, engine)
        if self.num_pages < 2:
            raise UnsupportedError(
                f"option 'kv_memory_bytes' holds {self.num_pages} pages of "
                f"{page_bytes(model, engine)} bytes; at least 2 are needed"
            )
        shape = (model.num_kv_heads, self.num_pages, engine.page_size, model.head_dim)
        self._k = [_zeros(shape, self._dtype) for _ in range(model.num_layers)]
        self._v = [_zeros(shape, self._dtype) for _ in range(model.num_layers)]

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """See KvCache."""
        for pages, values in ((self._k[layer], k), (self._v[layer], v)):
            by_slot = pages.flatten(1, 2)
            by_slot.index_copy_(1, slots, values.transpose(0, 1).to(self._dtype))

    def read(self, layer: int, block_tables: Tensor) -> tuple[Tensor, Tensor]:
        """See KvCache."""
        return self._gather(self._k[layer], block_tables), self._gather(
            self._v[layer], block_tables
        )

    def _gather(self, pages: Tensor, block_tables: Tensor) -> Tensor:
        found = pages.index_select(1, block_tables.flatten())
        by_row = found.view(pages.shape[0], block_tables.shape[0], -1, pages.shape[3])
        return by_row.to(self._compute_dtype)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    # numpy's zeros are the kernel's: untouched pages cost no memory and no time, unlike torch's.
    count = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, np.uint8)).view(dtype).view(shape)
