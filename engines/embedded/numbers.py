"""bfloat16 in numpy, which has no such dtype: its bit patterns are the upper half of float32's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def bf16_to_float32(bits: NDArray[Any]) -> NDArray[np.float32]:
    """The numbers of these bit patterns (uint16), exactly."""
    wide: NDArray[np.float32] = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return wide


def float32_to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bit patterns of the nearest bfloat16, ties to even. NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    nearest = (rounded >> np.uint32(16)).astype(np.uint16)
    # Rounding could carry a NaN's fraction away; its highest bit alone keeps it one.
    quiet = ((bits >> np.uint32(16)) | np.uint32(0x40)).astype(np.uint16)
    return np.where(np.isnan(values), quiet, nearest)
