"""The tensors behind the pages. Written by slot, read by block table, a layer at a time.

Told page ids and slots that were checked before; never told seqs, domains or tags.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.embedded.config import EngineConfig, ModelConfig, UnsupportedError, page_bytes
from engines.embedded.kv.codecs import Codec, Fp8, Plain
from engines.embedded.kv.memory import SharedMemory
from engines.embedded.kv.scales import Scales

TORCH_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
LAYOUT = "page/layer/kv/head/offset/dim"  # of the numbers in memory, outermost first


class KvCache:
    """Pages that each lie in one piece, over all layers: [page, layer, K or V, head, offset, dim].

    In one piece a page can be summed, copied and filled by another process. It costs attention
    nothing: what it gathers are the 16 tokens of one head, which lie together in any layout.
    Past the last page lie canaries, which no layer can reach: who writes there has gone astray.
    """

    num_canaries = 2

    def __init__(
        self,
        model: ModelConfig,
        engine: EngineConfig,
        scales: Scales | None = None,
        memory: SharedMemory | None = None,
    ) -> None:
        """New pages, all zero; or those in `memory`, which was made for the same configuration."""
        self.page_bytes = page_bytes(model, engine)
        self.num_pages = engine.kv_memory_bytes // self.page_bytes
        if self.num_pages < 2:
            raise UnsupportedError(
                f"option 'kv_memory_bytes' holds {self.num_pages} pages of "
                f"{self.page_bytes} bytes; at least 2 are needed"
            )
        size = (self.num_pages + self.num_canaries) * self.page_bytes
        self.memory = memory or _new_memory(size)
        if self.memory.size != size:
            raise ValueError(f"KV memory of {self.memory.size} bytes instead of {size}")
        scales = scales or Scales.unit(model.num_layers)
        self.scales_digest = scales.digest
        self._codec = _codec(engine, scales)
        self._page_size = engine.page_size
        self._lines = 2 * model.num_kv_heads  # of one page and layer: a head's K, or its V
        self._layers = model.num_layers
        pages = self.memory.data[: self.num_pages * self.page_bytes]
        self._bytes = torch.from_numpy(pages).view(self.num_pages, self.page_bytes)
        shape = (self._layers, 2, model.num_kv_heads, engine.page_size, model.head_dim)
        self._pool = self._bytes.view(self._codec.stored).view(self.num_pages, *shape)

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

    def copy(self, sources: Tensor, targets: Tensor) -> None:
        """Make each page of `targets` equal to that of `sources`, int64, over all layers."""
        # All are read before any is written; page by page, since index_copy_ goes byte by byte.
        found = self._bytes.index_select(0, sources)
        for target, page in zip(targets.tolist(), found, strict=True):
            self._bytes[target].copy_(page)

    def zero(self, pages: Tensor) -> None:
        """Make these pages, int64, all zero bits."""
        for page in pages.tolist():
            self._bytes[page].zero_()

    def is_zero(self, page: int) -> bool:
        """Whether the page is all zero bits. One that was never used is not even looked at."""
        start = page * self.page_bytes
        return (
            self.memory.untouched(start, start + self.page_bytes) or not self.bytes_of(page).any()
        )

    def bytes_of(self, page: int) -> NDArray[np.uint8]:
        """The page itself, not a copy: all layers, K and V, in one piece. For sums and transfers.

        In memory it begins where a page of the system does, if `page_bytes` is a multiple of that
        (4096), as with heads of 64 or 128 and pages of 16 tokens it is.
        """
        return self.memory.data[page * self.page_bytes : (page + 1) * self.page_bytes]


def _new_memory(size: int) -> SharedMemory:
    try:
        return SharedMemory.create(size)
    except OSError as error:
        raise UnsupportedError(f"option 'kv_memory_bytes': no {size} bytes: {error}") from error


def _codec(engine: EngineConfig, scales: Scales) -> Codec:
    compute = TORCH_DTYPES[engine.dtype]
    if engine.kv_dtype == "fp8_e4m3":
        return Fp8(compute, scales)
    return Plain(TORCH_DTYPES[engine.kv_dtype], compute)
