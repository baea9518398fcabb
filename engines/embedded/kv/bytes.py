"""The pages as bytes: their memory, wiped, copied, summed and filled. No torch, no numbers.

Told page ids that were checked before; never told seqs, domains or tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines.embedded.config import EngineConfig, ModelConfig, UnsupportedError, page_bytes
from engines.embedded.kv.memory import SharedMemory

Pages = Sequence[int] | NDArray[Any]


class PageBytes:
    """Pages that each lie in one piece, over all layers: so one can be summed, copied and filled.

    Past the last page lie canaries, which no layer can reach: who writes there has gone astray.
    """

    num_canaries = 2

    def __init__(
        self, model: ModelConfig, engine: EngineConfig, memory: SharedMemory | None = None
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
        pages = self.memory.data[: self.num_pages * self.page_bytes]
        self._pages = pages.reshape(self.num_pages, self.page_bytes)

    def copy(self, sources: Pages, targets: Pages) -> None:
        """Make each page of `targets` equal to that of `sources`, over all layers."""
        self._pages[targets] = self._pages[sources]  # all are read before any is written

    def zero(self, pages: Pages) -> None:
        """Make these pages all zero bits."""
        for page in pages:
            self._pages[page].fill(0)

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
