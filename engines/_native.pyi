"""The native kernels: built from engines/native/, absent where there is no compiler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Tags = NDArray[np.uint64]

def isas() -> list[str]:
    """The instruction sets that this CPU has kernels for, best first: amx, avx512, avx2, scalar."""

def pack_bf16(weight: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """Weights [n, k], bfloat16 by its bits, as `linear` reads them."""

def pack_int6(weight: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """`pack_int8`, to 6 bits."""

def pack_int8(weight: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """Weights [n, k], bfloat16 by its bits, rounded to int8 with a scale for each 64 of k."""

def pack_int4(weight: NDArray[np.uint8], scales: NDArray[np.float32]) -> NDArray[np.uint8]:
    """ModelOpt's bytes [n / 2, k] and its scales [n, k / group], as `linear` reads them."""

def packed_bytes(kind: str, n: int, k: int, group: int) -> int:
    """How many bytes the weights of a product take; `kind` and `group` as in `linear`."""

def linear(
    kind: str,
    packed: NDArray[np.uint8],
    n: int,
    k: int,
    group: int,
    x: NDArray[np.float32],
    *,
    isa: str = "",
    blocks: int = 0,
    threads: int = 1,
    onto: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """x W^T [rows, n], added to `onto` if given. Rounds x to what the product takes.

    `kind`: w16a16, w4a16, w4a8, w8a8 or w6a8; `group`: of the weights, any for w16a16;
    `isa`: the best one unless named; `blocks`: of 16 rows of W that a thread takes at a time, 0
    for all.
    """

class StepView:
    """A step's arrays, borrowed for as long as it lives: see engines/embedded/batch.py.

    Raises ValueError for arrays of another type, not contiguous, or whose shapes don't fit.
    """

    def __init__(
        self,
        input_ids: Ints,
        positions: Ints,
        token_rows: Ints,
        slot_mapping: Ints,
        block_tables: Ints,
        expected_tags: Tags,
        row_domains: Ints,
        row_owners: Ints,
        num_public: Ints,
        public_domains: Ints,
        context_lens: Ints,
        query_lens: Ints,
        num_pages: Ints,
        copy_rows: Ints,
        copy_sources: Ints,
        copy_tags: Tags,
        copy_domains: Ints,
        /,
    ) -> None: ...

class PageCheck:
    """The tag check and write guard over a pool's own arrays, which it borrows.

    Raises ValueError for arrays of another type, or of different lengths.
    """

    def __init__(
        self,
        tags: Tags,
        states: NDArray[np.uint8],
        refs: NDArray[np.int32],
        owners: Ints,
        page_size: int,
        active_state: int,
        isa: str = "",  # the best of this CPU
    ) -> None: ...
    def look(self, step: StepView, guard_writes: bool) -> tuple[int, bool]:
        """How many pages the step reads, and whether they and its slots are the rows' own."""

def rms_norm(
    isa: str,
    x: NDArray[np.float32],
    weight: NDArray[np.float32],
    eps: float,
    out: NDArray[np.float32],
) -> None:
    """Rows of x [rows, k] by the root of their mean square, times `weight` [k]."""

def to_bf16(
    isa: str, x: NDArray[np.float32], factors: NDArray[np.float32] | None, out: NDArray[np.uint16]
) -> None:
    """x [rows, k], times `factors` [k] if given, as the bits of bfloat16."""

def to_int8(
    isa: str,
    x: NDArray[np.float32],
    factors: NDArray[np.float32] | None,
    out: NDArray[np.int8],
    scales: NDArray[np.float32],
    sums: NDArray[np.int32],
) -> None:
    """The same as int8; a scale and a sum of the int8 values for each 64 of k."""

def swiglu(
    isa: str, gate: NDArray[np.float32], up: NDArray[np.float32], out: NDArray[np.float32]
) -> None:
    """gate * sigmoid(gate) * up, all [rows, k]."""

def rope(
    isa: str, x: NDArray[np.float32], cos: NDArray[np.float32], sin: NDArray[np.float32]
) -> None:
    """Turns the heads of x [rows, heads, dim] in place; cos and sin [rows, dim / 2]."""

def argmax(isa: str, x: NDArray[np.float32], out: NDArray[np.int32]) -> None:
    """The first highest of each row of x [rows, n]; -1 if one is NaN or the highest infinite."""

KV_LAYOUT: str
"""Names how numbers lie in a page."""

class PagedAttention:
    """Attention over the pages in `memory`, a layer at a time. Raises ValueError for what is off.

    `numbers`: bfloat16 or fp8_e4m3; scales: for each layer, 1 with bfloat16; `use_vbmi`: with that
    part of AVX-512, where the CPU has it: the bits are the same.
    """

    def __init__(
        self,
        isa: str,
        memory: NDArray[np.uint8],
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        numbers: str,
        k_scales: Sequence[float],
        v_scales: Sequence[float],
        use_vbmi: bool = True,
    ) -> None: ...
    def store(
        self,
        layer: int,
        slots: NDArray[np.int64],
        k: NDArray[np.float32],
        v: NDArray[np.float32],
    ) -> None:
        """k and v [tokens, kv_heads, head_dim] at `slots` [tokens]."""

    def attend(
        self,
        layer: int,
        q: NDArray[np.float32],
        tables: NDArray[np.int64],
        context_lens: NDArray[np.int64],
        query_lens: NDArray[np.int64],
        out: NDArray[np.float32],
        split: bool = False,
    ) -> None:
        """Each row's last queries, q and `out` [tokens, heads, head_dim], over its block table.

        `split`: one query a row, a segment of the context at a time, as threads share it.
        """

    def read_head(
        self, page: int, layer: int, side: int, kv_head: int, out: NDArray[np.float32]
    ) -> None:
        """K (side 0) or V (1) of one page as [page_size, head_dim]."""

class Linear:
    """A linear layer of a Model: y = (x * factors) W^T + bias. Arrays are kept, not copied."""

    def __init__(
        self,
        kind: str,
        packed: NDArray[np.uint8],
        n: int,
        k: int,
        group: int,
        bias: NDArray[np.float32] | None = None,
        factors: NDArray[np.float32] | None = None,
    ) -> None: ...

class Layer:
    """One layer of a Model: q, k and v in one matrix, gate and up by turns of 64 rows."""

    def __init__(
        self,
        *,
        attention_norm: NDArray[np.float32],
        qkv: Linear,
        q_norm: NDArray[np.float32] | None,
        k_norm: NDArray[np.float32] | None,
        output: Linear,
        mlp_norm: NDArray[np.float32],
        gate_up: Linear,
        down: Linear,
    ) -> None: ...

class Pages:
    """The memory of all pages, whole pages of it; `numbers` are bfloat16 or fp8_e4m3."""

    def __init__(
        self,
        *,
        memory: NDArray[np.uint8],
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        numbers: str,
        k_scales: list[float],
        v_scales: list[float],
    ) -> None: ...

class Model:
    """A model over its pages. Raises ValueError for parts that don't fit each other."""

    def __init__(
        self,
        *,
        embedding: NDArray[np.uint16],
        layers: list[Layer],
        norm: NDArray[np.float32],
        head: Linear,
        cos: NDArray[np.float32],
        sin: NDArray[np.float32],
        pages: Pages,
        heads: int,
        inner: int,
        eps: float,
        isa: str = "",
        threads: int = 1,
    ) -> None: ...
    def run(
        self,
        step: StepView,
        tokens: NDArray[np.int64],
        best: NDArray[np.int64],
        logits: NDArray[np.float32],
    ) -> None:
        """One step: its K and V into the pages; of the tokens at these places the token of the
        highest logit, or -1 where they aren't finite, and of as many as `logits` has rows all.

        Raises IndexError, with nothing written, for a step that names what isn't there.
        """
