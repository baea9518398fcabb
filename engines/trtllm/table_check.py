"""Whether the block table that TensorRT-LLM's attention reads names the blocks that it should.

The table is on the device: int32 [pools, rows, 2, columns], for keys and for values. An entry is
the offset of a block's first layer in its pool: `block * stride` for keys, and `kv_step` more for
values. What it should name is the guard's own list of the rows' blocks. Both are compared where
they are, on the stream that filled the table, and nothing is waited for.
"""

from __future__ import annotations

import torch
from torch import Tensor

FINE = -1


def first_faults(
    table: Tensor, expected: Tensor, counts: Tensor, stride: int, kv_step: int
) -> Tensor:
    """int32 [rows]: the first column that is wrong in any pool, or FINE.

    `expected` int32 [rows, columns]: blocks, of each row its first `counts` int32 [rows]; the table
    may have more rows and columns, which aren't looked at. A block below 0 is expected nowhere.
    """
    num_rows, num_columns = expected.shape
    columns = torch.arange(num_columns, device=table.device, dtype=torch.int32)
    if num_rows == 0 or num_columns == 0 or table.shape[0] == 0:
        return torch.full((num_rows,), FINE, device=table.device, dtype=torch.int32)
    found = table[:, :num_rows, :, :num_columns].to(torch.int64)
    keys = expected.to(torch.int64) * stride
    is_wrong = (found[:, :, 0] != keys) | (found[:, :, 1] != keys + kv_step) | (expected < 0)
    is_wrong = is_wrong.any(dim=0) & (columns < counts.unsqueeze(1))
    first = torch.where(is_wrong, columns, num_columns).amin(dim=1)
    return torch.where(first == num_columns, FINE, first).to(torch.int32)
