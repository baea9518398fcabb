"""How values lie in pages: as they are in bfloat16 or float32, or as FP8 e4m3 with scales.

All of it is exact arithmetic but for one rounding on the way in, and one on the way out where a
scale is not 1. Told tensors; never told pages.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from engines.embedded.kv.scales import Scales

E4M3_MAX = 448.0
AT_ONCE = 1 << 18  # pairs of codes: what is beside them in memory stays small, and near


class Codec(Protocol):
    """Values <-> what is stored of them."""

    stored: torch.dtype

    def encode(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """What to store of K and V."""
        ...

    def decode(self, layer: int, found: Tensor) -> tuple[Tensor, Tensor]:
        """K and V in the compute dtype, of what was stored: [2, ...], K first."""
        ...


class Plain:
    """Numbers as they are, rounded to the stored dtype."""

    def __init__(self, stored: torch.dtype, compute: torch.dtype) -> None:
        self.stored = stored
        self._compute = compute

    def encode(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """See Codec."""
        return k.to(self.stored), v.to(self.stored)

    def decode(self, layer: int, found: Tensor) -> tuple[Tensor, Tensor]:
        """See Codec."""
        k, v = found.to(self._compute)
        return k, v


class Fp8:
    """e4m3 codes, one byte a number: sign, 4 bits of exponent, 3 of fraction.

    For |value| / scale up to 448 the error of a stored number is at most 2^-4 of the value, or
    2^-10 times the scale where that is more (subnormals). Beyond it saturates, infinities
    included. NaN stays NaN, so that a fault upstream shows.
    """

    stored = torch.uint8

    def __init__(self, compute: torch.dtype, scales: Scales) -> None:
        self._compute = compute
        self._scales = scales
        self._table = _pairs(compute)

    def encode(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """See Codec."""
        return to_e4m3(k, self._scales.k[layer]), to_e4m3(v, self._scales.v[layer])

    def decode(self, layer: int, found: Tensor) -> tuple[Tensor, Tensor]:
        """See Codec."""
        # torch's own conversion takes eight times as long as a table for two codes at once.
        pairs = found.flatten().view(torch.uint16)
        values = torch.empty(len(pairs), dtype=self._table.dtype)
        for start in range(0, len(pairs), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            torch.index_select(self._table, 0, pairs[part].int(), out=values[part])
        k, v = values.view(self._compute).view(found.shape)
        return _scaled(k, self._scales.k[layer]), _scaled(v, self._scales.v[layer])


def to_e4m3(values: Tensor, scale: float = 1.0) -> Tensor:
    """The codes (uint8) nearest to values / scale, ties to even."""
    divided = values if scale == 1.0 else values.float() / scale
    # Whether torch's cast saturates depends on its version and device (2.13 does on a CPU, others
    # make NaN), so it is cut first. NaN passes through clamp.
    return divided.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def _scaled(values: Tensor, scale: float) -> Tensor:
    return values if scale == 1.0 else values.mul_(scale)


def _pairs(compute: torch.dtype) -> Tensor:
    """Of each two codes, low byte first, both values side by side as one integer."""
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(compute)
    pairs = torch.stack([values.repeat(256), values.repeat_interleave(256)], dim=1)
    return pairs.view(torch.int32 if compute.itemsize == 2 else torch.int64)[:, 0].contiguous()
