"""What stored KV is multiplied with when it is read, for each layer: K's scale and V's."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Scales:
    """One positive float32 number a layer. Stored = value / scale, rounded."""

    k: tuple[float, ...]
    v: tuple[float, ...]

    @classmethod
    def unit(cls, num_layers: int) -> Scales:
        """Values are stored as they are."""
        return cls((1.0,) * num_layers, (1.0,) * num_layers)

    @property
    def digest(self) -> str:
        """What tells these scales from others in a page's key: "unit", or SHA-256 in hex."""
        if set(self.k + self.v) == {1.0}:
            return "unit"
        return hashlib.sha256(np.array([self.k, self.v], "<f4").tobytes()).hexdigest()
