"""Attention over pages against the same sums in float64, for each kind of page.

The reference takes what the pages hold (values as `test_kv_fp8` defines them, computed there by
another way) as exact, and computes in float64. The bound follows from the roundings, with u half a
step of the compute dtype (2^-8 or 2^-24), d the head's size, n the tokens seen:

* A score has at most four roundings to u (the stored number times its scale, the factor d^-1/2
  which may be split between q and k, the product) and d + 8 to float32. So it is off by
  delta <= ((1 + u)^4 (1 + 2^-24)^(d + 8) - 1) sum |q k| / sqrt(d).
* Scores off by delta change a weight by a factor of at most e^(2 delta), since the sum of the
  weights changes too. The weight, V and the answer are each rounded to u, the exponentials and
  the two sums over n cost 2 n + 64 roundings to float32.
* So an answer is off by at most (e^(2 delta) (1 + u)^3 (1 + 2^-24)^(2 n + 64) - 1) sum w |v|.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engines.embedded.config import EngineConfig, page_bytes
from engines.embedded.kv import Scales
from engines.embedded.kv.cache import KvCache
from engines.embedded.layers.attention import Ints, PagedAttention
from tests.engines.kv_pools import MODEL, PAGE_SIZE
from tests.engines.test_kv_fp8 import nearest, value_of

Floats = NDArray[np.float64]
LAYER, HEADS, KV_HEADS, DIM = 1, MODEL.num_heads, MODEL.num_kv_heads, MODEL.head_dim
UNIT = Scales.unit(MODEL.num_layers)
OWN = Scales((1.0, 0.01, 1.0), (1.0, 0.007, 1.0))
# Tokens computed in this step and seen in all, by row. Rows of one token come first.
DECODE = [(1, 1), (1, 4), (1, 5), (1, 13), (1, 60)]
PREFILL = [(9, 9), (16, 16), (2, 2)]
CHUNKED = [(5, 14), (8, 16), (3, 60)]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
U = {"float32": 2.0**-24, "bfloat16": 2.0**-8}


@dataclass(frozen=True)
class Arrays:
    """What attention looks at of a batch."""

    slot_mapping: Ints
    block_tables: Ints
    context_lens: Ints
    query_lens: Ints
    num_pages: Ints
    last_tokens: Ints
    num_decodes: int


@dataclass
class Case:
    """Rows with random q, k and v [tokens, heads, DIM]; each row's pages in an order of its own."""

    rows: list[tuple[int, int]]
    tables: list[list[int]]
    q: list[torch.Tensor]
    k: list[torch.Tensor]
    v: list[torch.Tensor]

    @classmethod
    def of(cls, rows: list[tuple[int, int]], dtype: torch.dtype) -> Case:
        generator = torch.Generator().manual_seed(len(rows))
        sizes = [-(-seen // PAGE_SIZE) for _, seen in rows]
        pages = torch.randperm(sum(sizes), generator=generator) + 1
        tables = np.split(pages.numpy(), np.cumsum(sizes)[:-1])

        def random(tokens: int, heads: int, spread: float) -> torch.Tensor:
            return (torch.randn(tokens, heads, DIM, generator=generator) * spread).to(dtype)

        return cls(
            rows,
            [table.tolist() for table in tables],
            [random(new, HEADS, 1.5) for new, _ in rows],
            [random(seen, KV_HEADS, 1.5) for _, seen in rows],
            [random(seen, KV_HEADS, 0.5) for _, seen in rows],
        )

    def slots(self, row: int) -> torch.Tensor:
        table = torch.tensor(self.tables[row])[:, None] * PAGE_SIZE + torch.arange(PAGE_SIZE)
        return table.flatten()[: self.rows[row][1]]

    def arrays(self) -> Arrays:
        new, seen = np.array(self.rows).T
        block_tables = np.zeros((len(self.rows), max(map(len, self.tables))), np.int64)
        for row, table in enumerate(self.tables):
            block_tables[row, : len(table)] = table
        slots = [self.slots(row)[seen - new :] for row, (new, seen) in enumerate(self.rows)]
        return Arrays(
            slot_mapping=torch.cat(slots).numpy(),
            block_tables=block_tables,
            num_decodes=int((new == 1).sum()),
            num_pages=-(-seen // PAGE_SIZE),
            context_lens=seen,
            query_lens=new,
            last_tokens=np.cumsum(new) - 1,
        )


def answers(case: Case, kv: KvCache) -> list[Floats]:
    """What the layer says, by row: [new, heads, DIM]. Earlier tokens were written before."""
    for row, (new, seen) in enumerate(case.rows):
        earlier = slice(0, seen - new)
        kv.write(LAYER, case.slots(row)[earlier], case.k[row][earlier], case.v[row][earlier])
    new_k, new_v = (
        torch.cat([values[-new:] for values, (new, _) in zip(side, case.rows, strict=True)])
        for side in (case.k, case.v)
    )
    attention = PagedAttention(kv, case.arrays(), PAGE_SIZE)
    mixed = attention(LAYER, torch.cat(case.q), new_k, new_v).double().view(-1, HEADS, DIM)
    return np.split(mixed.numpy(), np.cumsum([new for new, _ in case.rows])[:-1])


def held(values: torch.Tensor, kv_dtype: str, scale: float) -> Floats:
    """What a page holds of the values, times its scale, in float64."""
    if kv_dtype != "fp8_e4m3":
        exact: Floats = values.to(DTYPES[kv_dtype]).double().numpy()
        return exact
    codes = nearest((values.float() / scale).double().numpy())
    return np.array([value_of(code) for code in range(256)])[codes] * scale


def reference(q: Floats, k: Floats, v: Floats, u: float) -> tuple[Floats, Floats]:
    """The answers of the last len(q) tokens of a row [new, heads, DIM], and their bounds."""
    new, seen = len(q), len(k)
    k, v = (np.repeat(side, HEADS // KV_HEADS, axis=1) for side in (k, v))
    scores = np.einsum("thd,shd->ths", q, k) / math.sqrt(DIM)
    sizes = np.einsum("thd,shd->ths", np.abs(q), np.abs(k)) / math.sqrt(DIM)
    unseen = np.arange(seen) > np.arange(seen - new, seen)[:, None, None]
    weights = np.where(unseen, 0, np.exp(scores - scores.max()))
    weights /= weights.sum(axis=2, keepdims=True)
    float32 = 1 + 2.0**-24
    delta = ((1 + u) ** 4 * float32 ** (DIM + 8) - 1) * np.where(unseen, 0, sizes).max(axis=2)
    factor = np.exp(2 * delta) * (1 + u) ** 3 * float32 ** (2 * seen + 64) - 1
    bounds = factor[:, :, None] * np.einsum("ths,shd->thd", weights, np.abs(v))
    return np.einsum("ths,shd->thd", weights, v), bounds


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("kv_dtype", "scales"),
    [("fp8_e4m3", UNIT), ("fp8_e4m3", OWN), ("bfloat16", UNIT), ("float32", UNIT)],
    ids=["fp8 unit", "fp8 scaled", "bfloat16", "float32"],
)
@pytest.mark.parametrize(
    "rows",
    [DECODE, PREFILL, CHUNKED, DECODE + PREFILL + CHUNKED],
    ids=["decode", "prefill", "chunked", "all"],
)
def test_attention_is_that_of_float64_within_the_bound(
    rows: list[tuple[int, int]], kv_dtype: str, scales: Scales, dtype: str
) -> None:
    """Each kind of row alone, and all in one batch. In float32 the bound sees a token missing."""
    case = Case.of(rows, DTYPES[dtype])
    engine = EngineConfig(dtype=dtype, kv_dtype=kv_dtype, page_size=PAGE_SIZE)
    pages = sum(map(len, case.tables)) + 1
    kv = KvCache(MODEL, replace(engine, kv_memory_bytes=pages * page_bytes(MODEL, engine)), scales)
    for row, found in enumerate(answers(case, kv)):
        q = case.q[row].double().numpy()
        k = held(case.k[row], kv_dtype, scales.k[LAYER])
        v = held(case.v[row], kv_dtype, scales.v[LAYER])
        exact, bounds = reference(q, k, v, U[dtype])
        assert (np.abs(found - exact) <= bounds).all()
        if dtype == "float32" and len(k) > len(q):
            shorter, _ = reference(q, k[:-1], v[:-1], U[dtype])
            assert (np.abs(found - shorter) > bounds).any()


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "fp8_e4m3"])
def test_what_lies_in_the_null_page_or_behind_a_row_s_end_is_not_seen(kv_dtype: str) -> None:
    """Finite residue there changes no bit of any answer."""
    case = Case.of(DECODE + PREFILL + CHUNKED, torch.bfloat16)
    engine = EngineConfig(kv_dtype=kv_dtype, page_size=PAGE_SIZE)
    pages = sum(map(len, case.tables)) + 1
    engine = replace(engine, kv_memory_bytes=pages * page_bytes(MODEL, engine))
    clean, dirty = KvCache(MODEL, engine), KvCache(MODEL, engine)
    for page in range(pages):
        dirty.bytes_of(page)[:] = 0x42
    for one, other in zip(answers(case, clean), answers(case, dirty), strict=True):
        assert np.array_equal(one, other)
