"""Weights in 4 bits, as ModelOpt writes them (W4A16_AWQ).

A byte holds two outputs (rows) of one input: row 2i in its low nibble, 2i + 1 in its high one, in
two's complement. weight = nibble * scale of its row and of its group of inputs; there is no zero
point. `pre_quant_scale`, where a layer has one, is multiplied with the layer's input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engines.embedded.config import UnsupportedError

Factors = NDArray[np.float32] | None  # of each input; None means 1


@dataclass(frozen=True, slots=True)
class Int4:
    """One matrix: its outputs by its inputs."""

    nibbles: NDArray[np.uint8]  # [outputs / 2, inputs]
    scales: NDArray[np.float32]  # [outputs, inputs / group]
    factors: Factors  # [inputs] `pre_quant_scale`

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


def common_factors(names: Sequence[str], factors: Sequence[Factors]) -> Factors:
    """The factors of the one input that several matrices share; they must agree on them."""
    first = factors[0]
    for other in factors[1:]:
        if first is None or other is None:
            is_same = first is other
        else:
            is_same = np.array_equal(first, other)
        if not is_same:
            raise UnsupportedError(f"{', '.join(names)} have one input and several pre_quant_scale")
    return first


def _signed(nibbles: NDArray[np.uint8]) -> NDArray[np.int8]:
    """0..15 in two's complement: -8..7."""
    return (nibbles ^ np.uint8(8)).view(np.int8) - np.int8(8)
