"""Run one batch: forward pass, logits of the rows that have a next token, and their sampling.

Told a batch that has been verified; never told why it looks as it does.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.embedded.batch import Batch, Ints
from engines.embedded.kv.cache import KvCache
from engines.embedded.layers.attention import PagedAttention
from engines.embedded.models.llama import Llama
from engines.embedded.sampler import best_of, choices


class Runner:
    """The model and its KV cache."""

    def __init__(self, model: Llama, kv: KvCache, page_size: int) -> None:
        self._model = model
        self._kv = kv
        self._page_size = page_size

    @torch.inference_mode()
    def run(self, batch: Batch) -> dict[int, tuple[int, ...]]:
        """See backend.Runner."""
        hidden = self._hidden(batch)
        tokens = batch.choice_tokens
        if not len(tokens):
            return {}
        logits = self._model.logits(hidden[torch.from_numpy(tokens)]).numpy()
        return choices(batch, best_of(logits), logits)

    @torch.inference_mode()
    def logits(self, batch: Batch, tokens: Ints) -> NDArray[np.float32]:
        """See backend.Runner."""
        hidden = self._hidden(batch)
        scores: NDArray[np.float32] = self._model.logits(hidden[torch.from_numpy(tokens)]).numpy()
        return scores

    def _hidden(self, batch: Batch) -> Tensor:
        if len(batch.copy_rows):
            self._kv.copy(batch.copy_sources, batch.copy_targets(self._page_size))
        attention = PagedAttention(self._kv, batch, self._page_size)
        return self._model.hidden(
            torch.from_numpy(batch.input_ids), torch.from_numpy(batch.positions), attention
        )

    def close(self) -> None:
        """Let go of all tensors. Nothing runs afterwards."""
        del self._model, self._kv
