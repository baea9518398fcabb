"""Weights in 4 bits, as ModelOpt writes them (W4A16_AWQ), and what it tells of them.

A byte holds two outputs (rows) of one input: row 2i in its low nibble, 2i + 1 in its high one, in
two's complement. weight = nibble * scale of its row and of its group of inputs; there is no zero
point. `pre_quant_scale`, where a layer has one, is multiplied with the layer's input.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines.embedded.config import UnsupportedError

FILE = "hf_quant_config.json"
ALGORITHM = "W4A16_AWQ"
GROUPS = (64, 128)


@dataclass(frozen=True, slots=True)
class Quantization:
    """What hf_quant_config.json says. `weights` is "" where they are not quantized."""

    weights: str
    group_size: int  # inputs that share a scale
    kv_cache: str  # "FP8" or ""
    excluded: tuple[str, ...]

    @classmethod
    def of_folder(cls, folder: Path) -> Quantization | None:
        """None for a checkpoint that isn't quantized. Raises UnsupportedError for another kind."""
        path = folder / FILE
        if not path.is_file():
            return None
        try:
            return cls._from_json(json.loads(path.read_bytes())["quantization"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnsupportedError(f"{path}: missing or malformed {error!r}") from error

    @classmethod
    def _from_json(cls, told: Mapping[str, Any]) -> Quantization:
        weights, kv_cache = told.get("quant_algo") or "", told.get("kv_cache_quant_algo") or ""
        if weights not in ("", ALGORITHM):
            raise UnsupportedError(f"quant_algo {weights!r} is not served: only {ALGORITHM} is")
        if kv_cache not in ("", "FP8"):
            raise UnsupportedError(f"kv_cache_quant_algo {kv_cache!r} is not served: only FP8 is")
        if told.get("has_zero_point"):
            raise UnsupportedError("weights with a zero point are not served")
        group_size = int(told["group_size"]) if weights else 0
        if weights and group_size not in GROUPS:
            raise UnsupportedError(f"group_size {group_size} is not served: only {GROUPS} are")
        return cls(weights, group_size, kv_cache, tuple(told.get("exclude_modules") or ()))


@dataclass(frozen=True, slots=True)
class Int4:
    """One matrix: its outputs by its inputs."""

    nibbles: NDArray[np.uint8]  # [outputs / 2, inputs]
    scales: NDArray[np.float32]  # [outputs, inputs / group]
    factors: NDArray[np.float32] | None  # [inputs] `pre_quant_scale`

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return int(self.nibbles.shape[1] // self.scales.shape[1])

    def float32(self) -> NDArray[np.float32]:
        """[outputs, inputs] the weights that the nibbles stand for, without `factors`."""
        outputs, inputs = self.scales.shape[0], self.nibbles.shape[1]
        values = np.empty((outputs, inputs), np.float32)
        values[0::2] = _signed(self.nibbles & np.uint8(15))
        values[1::2] = _signed(self.nibbles >> np.uint8(4))
        by_group = values.reshape(outputs, -1, self.group)
        by_group *= self.scales[:, :, None]
        return values


def _signed(nibbles: NDArray[np.uint8]) -> NDArray[np.int8]:
    """0..15 in two's complement: -8..7."""
    return (nibbles ^ np.uint8(8)).view(np.int8) - np.int8(8)
