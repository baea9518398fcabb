"""How fast each pair of a head's numbers turns from one position to the next. No torch.

The one place that knows: the torch layer and the native kernels both turn by these.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from engines.embedded.config import ModelConfig
from engines.families import RopeScaling

Frequencies = NDArray[np.float32]


def inverse_frequencies(model: ModelConfig) -> Frequencies:
    """[head_dim / 2] in radians a token, fastest first."""
    exponents = np.arange(0, model.head_dim, 2).astype(np.float32) / np.float32(model.head_dim)
    plain: Frequencies = np.float32(1) / np.float32(model.rope_theta) ** exponents
    return plain if model.rope_scaling is None else _stretched(plain, model.rope_scaling)


def _stretched(plain: Frequencies, scaling: RopeScaling) -> Frequencies:
    """Slow turns slowed by the factor, fast ones as they are, and those between in between."""
    turns = scaling.original_context * plain / np.float32(2 * math.pi)  # in the first context
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share = np.clip((turns - low) / (high - low), 0, 1).astype(np.float32)
    stretched: Frequencies = share * plain + (1 - share) * plain / np.float32(scaling.factor)
    return stretched
