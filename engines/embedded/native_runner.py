"""Run one batch in one native call, the GIL released; draw what isn't greedy.

Told a batch that has been verified; never told why it looks as it does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engines.embedded.batch import Batch, Ints
from engines.embedded.kv import PageBytes
from engines.embedded.sampler import choices
from engines.kernels import native


class NativeRunner:
    """The model and its pages. Logits are kept only of tokens that are drawn."""

    def __init__(self, model: native.Model, kv: PageBytes, vocab_size: int, page_size: int) -> None:
        self._model = model
        self._kv = kv
        self._page_size = page_size
        self._logits = np.empty((0, vocab_size), np.float32)  # grows once and stays

    def run(self, batch: Batch) -> dict[int, tuple[int, ...]]:
        """See backend.Runner."""
        rows, tokens = batch.choice_rows.tolist(), batch.choice_tokens
        is_drawn = [batch.chunks[row].seq.request.sampling.temperature > 0 for row in rows]
        drawn = np.flatnonzero(is_drawn)
        if len(self._logits) < len(drawn):
            self._logits = np.empty((len(drawn), self._logits.shape[1]), np.float32)
        order = np.concatenate([drawn, np.flatnonzero(np.logical_not(is_drawn))])
        found = self._run(batch, tokens[order], self._logits[: len(drawn)])
        best = np.empty_like(found)
        best[order] = found
        logits = dict(zip(drawn.tolist(), self._logits, strict=False))
        return choices(batch, best, logits)

    def logits(self, batch: Batch, tokens: Ints) -> NDArray[np.float32]:
        """See backend.Runner."""
        logits = np.empty((len(tokens), self._logits.shape[1]), np.float32)
        self._run(batch, tokens, logits)
        return logits

    def close(self) -> None:
        """Let go of the weights. Nothing runs afterwards."""
        del self._model, self._kv

    def _run(self, batch: Batch, tokens: Ints, logits: NDArray[np.float32]) -> Ints:
        """The best token of each, and the logits of the first."""
        if len(batch.copy_rows):
            self._kv.copy(batch.copy_sources, batch.copy_targets(self._page_size))
        best = np.empty(len(tokens), np.int64)
        self._model.run(batch.view, tokens, best, logits)
        return best
