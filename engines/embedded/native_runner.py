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
    """The model and its pages. Arrays for results grow once and stay."""

    def __init__(self, model: native.Model, kv: PageBytes, vocab_size: int, page_size: int) -> None:
        self._model = model
        self._kv = kv
        self._page_size = page_size
        self._logits = np.empty((0, vocab_size), np.float32)
        self._best = np.empty(0, np.int64)

    def run(self, batch: Batch) -> dict[int, tuple[int, ...]]:
        """See backend.Runner."""
        tokens = batch.choice_tokens
        self._run(batch, tokens)
        return choices(batch, self._logits[: len(tokens)], self._best[: len(tokens)])

    def logits(self, batch: Batch, tokens: Ints) -> NDArray[np.float32]:
        """See backend.Runner."""
        self._run(batch, tokens)
        return self._logits[: len(tokens)].copy()

    def close(self) -> None:
        """Let go of the weights. Nothing runs afterwards."""
        del self._model, self._kv

    def _run(self, batch: Batch, tokens: Ints) -> None:
        if len(batch.copy_rows):
            self._kv.copy(batch.copy_sources, batch.copy_targets(self._page_size))
        if len(self._best) < len(tokens):
            self._logits = np.empty((len(tokens), self._logits.shape[1]), np.float32)
            self._best = np.empty(len(tokens), np.int64)
        self._model.run(batch.view, tokens, self._logits, self._best)
