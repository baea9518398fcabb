"""Attention over the pages of one row, densely: the plain torch of `native/attention.h`.

On pages in the arrangement of `kv.KvCache`, [page, K or V, kv_head, offset, dim] of one layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

E4M3_MAX = 448.0


def to_e4m3(values: Tensor, scale: float = 1.0) -> Tensor:
    """What e4m3 makes of float32 values / scale: nearest, ties to even, at most 448."""
    return (values / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def attend(q: Tensor, pages: Tensor, table: Tensor, context_len: int) -> Tensor:
    """The last queries of a row, q [queries, heads, head_dim], over its block table [pages].

    `pages` hold numbers as they are, in q's dtype. Returns the shape of q.
    """
    found = pages[table].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :context_len]
    k, v = found.repeat_interleave(q.shape[1] // found.shape[1], dim=1)
    queries = q.transpose(0, 1)
    scores = queries @ k.transpose(1, 2) * q.shape[-1] ** -0.5
    positions = torch.arange(context_len - len(q), context_len)
    unseen = torch.arange(context_len) > positions[:, None]
    weights = scores.masked_fill(unseen, -torch.inf).softmax(-1)
    mixed: Tensor = weights @ v
    return mixed.transpose(0, 1)
