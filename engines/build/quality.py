"""What rounding has cost, on windows that no layer was fitted to."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from engines.build.dense import linear, rms_norm
from engines.build.layers import Streams
from engines.build.shape import Shape

SLICE = 256  # tokens whose logits are held at once
MOST_NATS = 700  # a token; e to more is no number any more


@dataclass(frozen=True, slots=True)
class Quality:
    """Means over tokens. Perplexities are e to the nats a token."""

    tokens: int
    perplexity: float
    source_perplexity: float
    kl: float  # nats a token, from the source's distribution
    same_likeliest: float  # share of tokens

    def told(self) -> dict[str, Any]:
        """For build.json."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def quality(
    shape: Shape, streams: Streams, text: Tensor, chosen: list[int], norm: Tensor, head: Tensor
) -> Quality | None:
    """Of the chosen windows of `text` [seqs, window]. None: none is chosen."""
    if not chosen:
        return None
    sums = torch.zeros(4, dtype=torch.float64)
    tokens, head = 0, head.bfloat16()
    for seq in chosen:
        for start in range(0, text.shape[1] - 1, SLICE):
            stop = min(start + SLICE, text.shape[1] - 1)
            exact, actual = (
                linear(rms_norm(stream[seq, start:stop], norm, shape.rms_norm_eps), head)
                for stream in (streams.exact, streams.actual)
            )
            targets = text[seq, start + 1 : stop + 1, None]
            sums += _sums(exact.log_softmax(-1), actual.log_softmax(-1), targets)
            tokens += stop - start
    nats, source_nats, kl, same = (sums / tokens).tolist()
    perplexity, before = (math.exp(min(one, MOST_NATS)) for one in (nats, source_nats))
    return Quality(tokens, perplexity, before, kl, same)


def _sums(exact: Tensor, actual: Tensor, targets: Tensor) -> Tensor:
    return torch.tensor(
        [
            -float(actual.gather(1, targets).sum()),
            -float(exact.gather(1, targets).sum()),
            float((exact.exp() * (exact - actual)).sum()),
            float((exact.argmax(1) == actual.argmax(1)).sum()),
        ],
        dtype=torch.float64,
    )
