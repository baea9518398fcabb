"""The native kernels: built from engines/native/, absent where there is no compiler."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Tags = NDArray[np.uint64]

def isas() -> list[str]:
    """The instruction sets that this CPU has kernels for, best first: avx512, avx2, scalar."""

def pack_bf16(weight: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """Weights [n, k], bfloat16 by its bits, as `linear` reads them."""

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

    `kind`: w16a16, w4a16, w4a8 or w8a8; `group`: of the weights, any for w16a16; `isa`: the best
    one unless named; `blocks`: of 16 rows of W that a thread takes at a time, 0 for all.
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
