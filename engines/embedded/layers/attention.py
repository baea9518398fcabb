"""Attention over pages: all decode rows at once, prefill chunks row by row.

Told the arrays of a batch and a KvCache. Every row attends to its own block table and no other.
A token's K and V are read back from its page also in the step that computes them, so that an answer
doesn't depend on how its prompt was cut, whatever the pages make of the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engines.embedded.kv.cache import KvCache

Ints = NDArray[np.int64]


class Rows(Protocol):
    """What attention looks at of a `batch.Batch`."""

    @property
    def slot_mapping(self) -> Ints: ...
    @property
    def block_tables(self) -> Ints: ...
    @property
    def context_lens(self) -> Ints: ...
    @property
    def query_lens(self) -> Ints: ...
    @property
    def num_pages(self) -> Ints: ...
    @property
    def last_tokens(self) -> Ints: ...
    @property
    def num_decodes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _PrefillRow:
    first: int  # its tokens in the ragged arrays: first .. last - 1
    last: int
    block_table: Tensor  # [1, pages]
    context_len: int
    mask: Tensor | None  # [query_len, context_len] True where seen; None is plain causal


class PagedAttention:
    """The attention of one step, shared by all layers."""

    def __init__(self, kv: KvCache, batch: Rows, page_size: int) -> None:
        self._kv = kv
        self._slots = torch.from_numpy(batch.slot_mapping)
        block_tables = torch.from_numpy(batch.block_tables)  # the same memory, no copy
        self._num_decodes = n = batch.num_decodes
        width = int(batch.num_pages[:n].max(initial=0))
        self._decode_tables = block_tables[:n, :width]
        context_lens = torch.from_numpy(batch.context_lens[:n])
        unseen = torch.arange(width * page_size) >= context_lens[:, None]
        # [rows, 1, tokens], added to the scores
        self._decode_bias = torch.zeros(unseen.shape).masked_fill_(unseen, -torch.inf)[:, None]
        ends = (batch.last_tokens + 1).tolist()
        self._prefills = [
            _prefill_row(batch, block_tables, row, ends[row]) for row in range(n, len(ends))
        ]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store k and v [tokens, kv_heads, head_dim]; attend with q [tokens, heads, head_dim].

        Returns [tokens, heads * head_dim].
        """
        self._kv.write(layer, self._slots, k, v)
        parts = [self._prefill(layer, q, row) for row in self._prefills]
        if self._num_decodes:
            parts.insert(0, self._decode(layer, q[: self._num_decodes]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode(self, layer: int, q: Tensor) -> Tensor:
        # One query a row: matrix products grouped by kv head, since bf16 SDPA is ten times slower.
        rows, heads, head_dim = q.shape
        k, v = self._kv.read(layer, self._decode_tables)
        kv_heads = k.shape[0]
        grouped = q.view(rows, kv_heads, heads // kv_heads, head_dim).transpose(0, 1)
        scores = torch.matmul(grouped, k.transpose(-1, -2)).float()
        weights = torch.softmax(scores.mul_(head_dim**-0.5).add_(self._decode_bias), dim=-1)
        mixed = torch.matmul(weights.to(v.dtype), v)  # [kv_heads, rows, group, head_dim]
        return mixed.transpose(0, 1).reshape(rows, heads * head_dim)

    def _prefill(self, layer: int, q: Tensor, row: _PrefillRow) -> Tensor:
        k, v = (pages[:, 0, : row.context_len] for pages in self._kv.read(layer, row.block_table))
        mixed = scaled_dot_product_attention(
            q[row.first : row.last].transpose(0, 1).unsqueeze(0),
            k.unsqueeze(0),
            v.unsqueeze(0),
            attn_mask=row.mask,
            is_causal=row.mask is None,
            enable_gqa=True,
        )
        return mixed[0].transpose(0, 1).flatten(1)


def _prefill_row(batch: Rows, block_tables: Tensor, row: int, last: int) -> _PrefillRow:
    query_len, context_len = int(batch.query_lens[row]), int(batch.context_lens[row])
    mask = None
    if context_len > query_len:  # earlier chunks or a cached prefix are seen by every query
        positions = torch.arange(context_len - query_len, context_len)
        mask = torch.arange(context_len) <= positions[:, None]
    table = block_tables[row : row + 1, : int(batch.num_pages[row])]
    return _PrefillRow(last - query_len, last, table, context_len, mask)
