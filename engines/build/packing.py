"""A built layer as the tensors that ModelOpt's unified checkpoint holds, and back."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.build.feedback import Rounded


def pack(integers: Tensor) -> Tensor:
    """[n, k] of -8..7 -> uint8 [n / 2, k]: row 2i in the low nibble, 2i + 1 in the high one."""
    nibbles = integers.to(torch.int8).view(torch.uint8) & 15
    return nibbles[0::2] | (nibbles[1::2] << 4)


def unpack(packed: Tensor) -> Tensor:
    """The inverse of `pack`, as float32."""
    rows = torch.stack((packed & 15, packed >> 4), dim=1).flatten(0, 1)
    return ((rows ^ 8).float() - 8).contiguous()


def packed_tensors(name: str, found: Rounded) -> dict[str, Tensor]:
    """One matrix, under its name in the model."""
    return {f"{name}.weight": pack(found.integers), f"{name}.weight_scale": found.scales.float()}


def unpacked(name: str, tensors: dict[str, Tensor], group: int) -> Rounded:
    """One matrix of what was stored."""
    return Rounded(unpack(tensors[f"{name}.weight"]), tensors[f"{name}.weight_scale"], group)
