"""How far apart two models' opinions of the next token are. Pure; all in natural logarithms.

`Logs` are log probabilities [rows, vocab_size] in float64: differences of small numbers count here.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
Logs = NDArray[np.float64]
PerToken = NDArray[np.float64]


def log_probs(logits: Logits) -> Logs:
    """Of each row of logits."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def divergences(base: Logs, other: Logs) -> PerToken:
    """KL(base || other) of each row, in nats: 0 where they agree, never less but for rounding."""
    found: PerToken = np.einsum("rv,rv->r", np.exp(base), base - other)
    return found


def agreements(base: Logs, other: Logs) -> NDArray[np.bool_]:
    """Whether the likeliest token is the same, row by row."""
    same: NDArray[np.bool_] = base.argmax(axis=1) == other.argmax(axis=1)
    return same


def nats(logs: Logs, targets: NDArray[np.int64]) -> PerToken:
    """How unexpected each row's target is."""
    found: PerToken = -logs[np.arange(len(targets)), targets]
    return found


@dataclass(slots=True)
class Losses:
    """Nats of the tokens of some texts."""

    nats: float = 0.0
    tokens: int = 0

    def add(self, of_tokens: PerToken) -> None:
        """Some more tokens."""
        self.nats += float(of_tokens.sum())
        self.tokens += len(of_tokens)

    @property
    def perplexity(self) -> float | None:
        """exp of the mean; None of no tokens."""
        return math.exp(self.nats / self.tokens) if self.tokens else None


@dataclass(slots=True)
class Tally:
    """One model's distance from the base over many tokens: eight bytes a token are kept."""

    each: array[float] = field(default_factory=lambda: array("d"))  # divergences
    agreed: int = 0

    def add(self, of_tokens: Iterable[float], agreed: int) -> None:
        """Some more tokens."""
        self.each.extend(of_tokens)
        self.agreed += agreed

    @property
    def mean(self) -> float:
        """Nats a token."""
        return float(np.mean(self.each))

    def quantile(self, share: float) -> float:
        """The divergence that this share of the tokens doesn't exceed."""
        return float(np.quantile(self.each, share))

    @property
    def agreement(self) -> float:
        """The share of tokens of which the likeliest is the same."""
        return self.agreed / len(self.each)
