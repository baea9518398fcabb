"""The numbers in the pages, as torch sees them. Written by slot, read by block table, a layer at a
time.

Told page ids and slots that were checked before; never told seqs, domains or tags.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engines.embedded.config import EngineConfig, ModelConfig
from engines.embedded.kv.bytes import PageBytes
from engines.embedded.kv.codecs import Codec, Fp8, Plain
from engines.embedded.kv.memory import SharedMemory
from engines.embedded.kv.scales import Scales

TORCH_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
LAYOUT = "page/layer/kv/head/offset/dim"  # of the numbers in memory, outermost first


class KvCache(PageBytes):
    """Pages of [layer, K or V, head, offset, dim].

    That a page lies in one piece costs attention nothing: what it gathers are the 16 tokens of one
    head, which lie together in any layout.
    """

    def __init__(
        self,
        model: ModelConfig,
        engine: EngineConfig,
        scales: Scales | None = None,
        memory: SharedMemory | None = None,
    ) -> None:
        """See PageBytes."""
        super().__init__(model, engine, memory)
        self._codec = _codec(engine, scales or Scales.unit(model.num_layers))
        self._page_size = engine.page_size
        self._lines = 2 * model.num_kv_heads  # of one page and layer: a head's K, or its V
        self._layers = model.num_layers
        shape = (self._layers, 2, model.num_kv_heads, engine.page_size, model.head_dim)
        numbers = torch.from_numpy(self._pages).view(self._codec.stored)
        self._pool = numbers.view(self.num_pages, *shape)

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store k and v, each [tokens, kv_heads, head_dim], at `slots` [tokens]."""
        pages, offsets = slots // self._page_size, slots % self._page_size
        of_layer = self._pool[:, layer]
        for side, values in enumerate(self._codec.encode(layer, k, v)):
            of_layer[pages, side, :, offsets] = values

    def read(self, layer: int, block_tables: Tensor) -> tuple[Tensor, Tensor]:
        """K and V of whole pages, each [kv_heads, rows, max_pages * page_size, head_dim]."""
        rows, head_dim = len(block_tables), self._pool.shape[-1]
        firsts = (block_tables.flatten() * self._layers + layer) * self._lines
        lines = firsts + torch.arange(self._lines)[:, None]
        found = self._pool.view(-1, self._page_size * head_dim).index_select(0, lines.flatten())
        return self._codec.decode(layer, found.view(2, self._lines // 2, rows, -1, head_dim))


def _codec(engine: EngineConfig, scales: Scales) -> Codec:
    compute = TORCH_DTYPES[engine.dtype]
    if engine.kv_dtype == "fp8_e4m3":
        return Fp8(compute, scales)
    return Plain(TORCH_DTYPES[engine.kv_dtype], compute)
