"""RMS normalisation."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last dimension in float32, round to x's dtype, then scale."""
    # Scaling apart: inside rms_norm it would happen before the rounding, unlike in training code.
    return functional.rms_norm(x, x.shape[-1:], None, eps) * weight
