"""What stored KV is multiplied with when it is read, for each layer: K's scale and V's."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engines.embedded.checkpoint import Checkpoint
from engines.embedded.config import EngineConfig, ModelConfig, UnsupportedError


@dataclass(frozen=True, slots=True)
class Scales:
    """One positive float32 number a layer. Stored = value / scale, rounded."""

    k: tuple[float, ...]
    v: tuple[float, ...]

    @classmethod
    def unit(cls, num_layers: int) -> Scales:
        """Values are stored as they are."""
        return cls((1.0,) * num_layers, (1.0,) * num_layers)

    @classmethod
    def of(cls, folder: Path, model: ModelConfig, engine: EngineConfig) -> Scales:
        """All 1, or those that were calibrated with the checkpoint: all of them or none."""
        if engine.kv_scales == "unit":
            return cls.unit(model.num_layers)
        checkpoint = Checkpoint(folder)
        layers = [f"model.layers.{i}.self_attn" for i in range(model.num_layers)]
        names = [f"{layer}.{of}" for of in ("k_proj.k_scale", "v_proj.v_scale") for layer in layers]
        if missing := [name for name in names if name not in checkpoint]:
            raise UnsupportedError(
                f"the checkpoint has no KV scales: {', '.join(missing)} are missing; "
                "option 'kv_scales' = \"unit\" needs none"
            )
        values = checkpoint.positive_numbers(names)
        return cls(values[: model.num_layers], values[model.num_layers :])

    @property
    def digest(self) -> str:
        """What tells these scales from others in a page's key: "unit", or SHA-256 in hex."""
        if set(self.k + self.v) == {1.0}:
            return "unit"
        return hashlib.sha256(np.array([self.k, self.v], "<f4").tobytes()).hexdigest()
