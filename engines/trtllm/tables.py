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
        self._laid_out = np.zeros((0, 0), np.int32)  # as `of` left it: most rows stay as they are
        self._rows: dict[int, int] = {}  # request -> its row there
        self._changed: set[int] = set()  # requests, since then

    def told(self, step: Told) -> None:
        """What has changed by this step."""
        for request, is_new, blocks in step:
            if is_new is not False or blocks:
                self._changed.add(request)
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
            self._changed.add(oldest)

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
        width = max(lengths, default=0)
        if list(self._rows) != list(requests) or width > self._laid_out.shape[1]:
            self._rows = {request: row for row, request in enumerate(requests)}
            self._changed = set(requests)
            if len(requests) > len(self._laid_out) or width > self._laid_out.shape[1]:
                self._laid_out = np.zeros((2 * len(requests), 2 * width), np.int32)
        for request in self._changed & self._rows.keys():
            if length := self._lengths.get(request, 0):
                self._laid_out[self._rows[request], :length] = self._blocks[request][:length]
        self._changed.clear()
        return self._laid_out[: len(lengths), :width], np.array(lengths, np.int32)
