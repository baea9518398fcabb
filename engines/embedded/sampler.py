"""Choose the next token of each row from its logits.

A draw depends on (seed, position) alone, so a request repeats exactly however it was batched or
chunked, as far as its logits do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engines.api import Sampling

_SHORTLIST = 512  # tokens; nearly always enough to hold top_p, and far cheaper than a full sort


def sample(logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int]) -> list[int]:
    """One token id a row of logits [rows, vocab_size]; `positions` are those of the new tokens."""
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    for row, (sampling, position) in enumerate(zip(samplings, positions, strict=True)):
        if sampling.temperature > 0:
            tokens[row] = _draw(logits[row], sampling, position)
    return tokens


def uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) of one position under one seed: a counter-based generator."""
    bits = np.random.Philox(key=seed % 2**64, counter=position)
    return float(np.random.Generator(bits).random())


def _draw(logits: Tensor, sampling: Sampling, position: int) -> int:
    wide = logits.double()
    probabilities = torch.softmax((wide - wide.max()) / sampling.temperature, dim=-1)
    number = uniform(sampling.seed, position)
    if sampling.top_p >= 1:
        return _inverse(probabilities, number)
    kept, token_ids = _nucleus(probabilities, sampling.top_p)
    return int(token_ids[_inverse(kept, number)])


def _nucleus(probabilities: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The fewest most likely tokens that together reach `top_p`, and their ids."""
    kept, token_ids = probabilities.topk(min(_SHORTLIST, len(probabilities)))
    if float(kept.sum()) < top_p:
        kept, token_ids = probabilities.sort(descending=True)
    count = int((kept.cumsum(dim=0) < top_p).sum()) + 1
    return kept[:count], token_ids[:count]


def _inverse(weights: Tensor, number: float) -> int:
    """The index whose share of the cumulated weights holds `number` of their sum."""
    cumulated = weights.cumsum(dim=0)
    index = int(torch.searchsorted(cumulated, number * float(cumulated[-1]), right=True))
    return min(index, len(weights) - 1)
