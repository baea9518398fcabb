"""The rows' blocks as each rank knows them: from what rank 0 tells of a step.

What is told crosses between processes, so it is plain tuples of numbers: of each scheduled request
its id, whether it is new, and the blocks that were added since it was last told. Where instead of
whether it is new there is None, its list can't be known any more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Told = tuple[tuple[int, bool | None, tuple[int, ...]], ...]
Blocks = NDArray[np.int32]

MAX_REQUESTS = 8192  # far above any batch: what is older was cancelled, and nobody says so


class Tables:
    """Each request's blocks, in the order of its tokens."""

    def __init__(self) -> None:
        self._blocks: dict[int, Blocks] = {}
        self._lengths: dict[int, int] = {}
        self._laid_out = np.empty(0, np.int32)  # as `of` left it: new memory costs more than it

    def told(self, step: Told) -> None:
        """What has changed by this step."""
        for request, is_new, blocks in step:
            if is_new is not False:
                self._lengths.pop(request, None)
                self._blocks.pop(request, None)
            if is_new:
                self._lengths[request] = 0
                self._blocks[request] = np.empty(max(16, len(blocks)), np.int32)
            if blocks and request in self._lengths:
                self._append(request, blocks)
        while len(self._lengths) > MAX_REQUESTS:
            oldest = next(iter(self._lengths))
            del self._lengths[oldest], self._blocks[oldest]

    def _append(self, request: int, blocks: Sequence[int]) -> None:
        length = self._lengths[request]
        end = length + len(blocks)
        array = self._blocks[request]
        if end > len(array):
            array = np.empty(2 * end, np.int32)
            array[:length] = self._blocks[request][:length]
            self._blocks[request] = array
        array[length:end] = blocks
        self._lengths[request] = end

    def of(self, requests: Sequence[int]) -> tuple[Blocks, Blocks]:
        """int32 [rows, columns] and [rows]: the blocks, and how many each has; unknown: none.

        Beyond a row's last block there is anything. It is so until the next call.
        """
        lengths = [self._lengths.get(request, 0) for request in requests]
        shape = len(lengths), max(lengths, default=0)
        if shape[0] * shape[1] > len(self._laid_out):
            self._laid_out = np.zeros(2 * shape[0] * shape[1], np.int32)
        blocks = self._laid_out[: shape[0] * shape[1]].reshape(shape)
        for row, request, length in zip(blocks, requests, lengths, strict=True):
            if length:
                row[:length] = self._blocks[request][:length]
        return blocks, np.array(lengths, np.int32)
