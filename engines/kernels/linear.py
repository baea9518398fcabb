"""Products with weights that never change, y = x W^T: the plain torch of `native/linear.h`.

On an artefact's own arrays, without packing. x is float32 [rows, k], and each product rounds it to
what it computes with: bfloat16, or int8 with one scale for each 64 values of a row. Sums are in
float32. Where x is int8 the sum of a group is exact and the groups are added in order of k, each by
one fused multiply-add, so that the native results are these but for one rounding in a million.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

INPUT_GROUP = 64
LEAST = 2.0**-120  # what counts in a group of x


class Int8(NamedTuple):
    """Values, int8 [rows, k], and the scale of each 64 of them, float32 [rows, k / 64]."""

    values: Tensor
    scales: Tensor


def w16a16(x: Tensor, weight: Tensor) -> Tensor:
    """`weight` bfloat16 [n, k]. float32 [rows, n]."""
    return x.bfloat16().float() @ weight.float().T


def w4a16(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """`weight` and `scales` as in `int4_values`. Weights are exact; TensorRT-LLM rounds them."""
    values = int4_values(weight)
    by_group = _group_sums(x.bfloat16().float(), values.float())
    return _added_up(by_group, _of_each_64(scales, values)[:, None])


def w4a8(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """`weight` and `scales` as in `int4_values`."""
    values = int4_values(weight)
    return _int8_product(int8_rows(x), values, _of_each_64(scales, values))


def w8a8(x: Tensor, weight: Tensor) -> Tensor:
    """`weight` bfloat16 [n, k], rounded to int8 as the packer does."""
    rounded = rounded_weight(weight, 127)
    return _int8_product(int8_rows(x), rounded.values, rounded.scales.T)


def w6a8(x: Tensor, weight: Tensor) -> Tensor:
    """The same with weights of 6 bits."""
    rounded = rounded_weight(weight, 31)
    return _int8_product(int8_rows(x), rounded.values, rounded.scales.T)


def int4_values(weight: Tensor) -> Tensor:
    """int8 [n, k] of ModelOpt's uint8 [n / 2, k]: row 2i in the low nibble, 2i + 1 in the high.

    Its scales are float32 [n, k / 64] or [n, k / 128], and are rounded to bfloat16.
    """
    nibbles = torch.stack((weight & 15, weight >> 4), dim=1).flatten(0, 1)
    return (nibbles ^ 8).to(torch.int8) - 8


def int8_rows(x: Tensor) -> Int8:
    """x rounded to nearest, half to even. A group with NaN or an infinity has a scale of NaN.

    One whose numbers are all under 2^-120 is of zeros, whatever its scale.
    """
    groups = x.float().view(len(x), -1, INPUT_GROUP)
    highest = groups.abs().amax(2)
    is_counted = highest.isfinite() & (highest >= LEAST)
    steps = torch.where(is_counted[:, :, None], groups * (127 / highest)[:, :, None], 0)
    scales = torch.where(highest.isfinite(), highest / 127, torch.nan)
    return Int8(steps.round().to(torch.int8).flatten(1), scales)


def rounded_weight(weight: Tensor, most: int) -> Int8:
    """The same for weights, to whole numbers of at most `most`.

    Their scales are bfloat16 numbers, so that they take half the room.
    """
    groups = weight.float().view(len(weight), -1, INPUT_GROUP)
    scales = (groups.abs().amax(2) / most).bfloat16().float()
    return Int8(_rounded(groups, scales, most), scales)


def _rounded(groups: Tensor, scales: Tensor, most: int) -> Tensor:
    steps = (groups / scales[:, :, None]).nan_to_num(0, 0, 0)
    return steps.round().clamp(-most, most).to(torch.int8).flatten(1)


def _of_each_64(scales: Tensor, values: Tensor) -> Tensor:
    """bfloat16 numbers [k / 64, n]."""
    repeats = values.shape[1] // INPUT_GROUP // scales.shape[1]
    return scales.bfloat16().float().repeat_interleave(repeats, 1).T


def _int8_product(x: Int8, values: Tensor, scales: Tensor) -> Tensor:
    exact = _group_sums(x.values.float(), values.float())
    return _added_up(exact, x.scales.T[:, :, None] * scales[:, None])


def _group_sums(x: Tensor, w: Tensor) -> Tensor:
    """[k / 64, rows, n]. Of int8 numbers exact: below 2^24."""
    x_groups = x.view(len(x), -1, INPUT_GROUP).transpose(0, 1)
    return x_groups @ w.view(len(w), -1, INPUT_GROUP).permute(1, 2, 0)


def _added_up(by_group: Tensor, scales: Tensor) -> Tensor:
    total = torch.zeros(by_group.shape[1:])
    for of_group, scale in zip(by_group, scales, strict=True):
        # Fused: the product of two float32 is exact in float64.
        total = (of_group.double() * scale.double() + total.double()).float()
    return total
