"""How large the numbers are that a KV cache would hold: whether e4m3 takes them as they are."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

LARGEST = 448.0  # of e4m3
SMALLEST_NORMAL = 2.0**-6  # below it e4m3 has fewer than three bits of mantissa


@dataclass
class Side:
    """Of K, or of V."""

    amax: float = 0.0
    small: int = 0
    total: int = 0

    def add(self, values: Tensor) -> None:
        """More of its numbers."""
        sizes = values.abs()
        self.amax = max(self.amax, float(sizes.max()))
        self.small += int((sizes < SMALLEST_NORMAL).sum())
        self.total += sizes.numel()

    @property
    def scale(self) -> float:
        """What numbers are divided by so that the largest is e4m3's largest."""
        return max(self.amax, 1e-12) / LARGEST

    @property
    def small_share(self) -> float | None:
        """The share of numbers below e4m3's smallest normal, where they were looked at."""
        return round(self.small / self.total, 6) if self.total else None


class KvRange:
    """Of one layer."""

    def __init__(self) -> None:
        self.k, self.v = Side(), Side()

    def add(self, k: Tensor, v: Tensor) -> None:
        """What a stretch of text would put into the cache."""
        self.k.add(k)
        self.v.add(v)
