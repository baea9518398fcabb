"""The check of the device's block table in one kernel: what `table_check` says, for CUDA.

Import it only where there is a GPU: it needs triton. Its kernel is queued on the current stream,
behind what filled the table. One program looks at one row of all pools.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

AT_ONCE = 256  # columns


def first_faults(
    table: Tensor, expected: Tensor, counts: Tensor, stride: int, kv_step: int
) -> Tensor:
    """As `table_check.first_faults`."""
    num_rows, num_columns = expected.shape
    first = torch.empty(num_rows, dtype=torch.int32, device=table.device)
    if num_rows > 0:
        _rows_kernel[(num_rows,)](
            table,
            table.stride(0),
            table.stride(1),
            table.stride(2),
            table.stride(3),
            table.shape[0],
            expected.contiguous(),
            num_columns,
            counts.contiguous(),
            first,
            stride,
            kv_step,
            AT_ONCE,
        )
    return first


# Compiled once for whatever numbers: a new one in the middle of serving would hold all up.
NUMBERS = ["pool_stride", "row_stride", "kv_stride", "column_stride", "num_pools", "num_columns"]


@triton.jit(do_not_specialize=[*NUMBERS, "stride", "kv_step"])
def _rows_kernel(  # noqa: PLR0913 - as its caller
    table,
    pool_stride,
    row_stride,
    kv_stride,
    column_stride,
    num_pools,
    expected,
    num_columns,
    counts,
    first,
    stride,
    kv_step,
    at_once: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    count = tl.minimum(tl.load(counts + row), num_columns)
    worst = num_columns
    for start in range(0, count, at_once):
        columns = start + tl.arange(0, at_once)
        is_read = columns < count
        blocks = tl.load(expected + row * num_columns + columns, mask=is_read, other=0)
        keys = blocks.to(tl.int64) * stride
        is_wrong = is_read & (blocks < 0)
        for pool in range(num_pools):
            places = table + pool * pool_stride + row * row_stride + columns * column_stride
            found_keys = tl.load(places, mask=is_read, other=0).to(tl.int64)
            found_values = tl.load(places + kv_stride, mask=is_read, other=0).to(tl.int64)
            differs = (found_keys != keys) | (found_values != keys + kv_step)
            is_wrong = is_wrong | (is_read & differs)
        worst = tl.minimum(worst, tl.min(tl.where(is_wrong, columns, num_columns)))
    tl.store(first + row, tl.where(worst == num_columns, -1, worst))
