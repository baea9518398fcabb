"""The check of the block table that attention reads, right behind the copy that fills it.

A connector isn't shown that table. TensorRT-LLM fills it in `TrtllmAttentionMetadata.prepare`,
after a connector's `start_load_kv`; so that method is wrapped, and the check is queued on the
stream behind the copy and before the forward pass, and once more behind the pass. What it found is
read before any token of the pass is handed on. Where the method or what it fills isn't as we know
it, there is no such check, and `reach` says so; the ledger works without.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from engines.trtllm import table_check
from engines.trtllm.tables import Tables, Told

log = logging.getLogger("bulkhead.guard")

METADATA_MODULE = "tensorrt_llm._torch.attention_backend.trtllm"
METADATA_CLASS = "TrtllmAttentionMetadata"

Fault = tuple[int, int]  # a request, and the block that its table should have named


class DeviceTable:
    """One a rank. `start` and `faults` once a step, around what fills the table."""

    def __init__(self) -> None:
        self.num_checked = 0  # blocks
        self.is_off = ""  # why, where there is no check
        self._tables = Tables()
        self._pending: _Check | None = None
        self._stride = 0
        self._kv_step = 0
        self._is_understood = False

    def pool_is(self, pool: Tensor) -> None:
        """The pool that was registered: [blocks, layers, 1 or 2, ...]."""
        if pool.dim() != 4 or pool.shape[2] not in (1, 2):
            self.turn_off(f"the pool's shape is {tuple(pool.shape)}")
            return
        if pool.is_cuda:
            _kernel(pool.device)
        self._stride = pool.shape[1] * pool.shape[2]
        self._kv_step = pool.shape[2] - 1

    def turn_off(self, why: str) -> None:
        """Says it once."""
        if not self.is_off:
            self.is_off = why
            log.warning("bulkhead guard: the device's block table isn't checked: %s", why)

    def start(self, step: Told) -> None:
        """What the rows of the coming pass should read."""
        self._tables.told(step)
        self._pending = None

    def filled(self, table: Tensor, requests: Sequence[int]) -> None:
        """[pools, rows, 2, columns], just filled for these requests: the check is queued."""
        if self.is_off or not self._stride:
            return
        check = _Check(table, requests, self._tables)
        if not check.counts.any():
            return
        if not check.fits:
            self.turn_off(f"a table of the shape {tuple(table.shape)} is too small")
            return
        self._pending = check
        check.look(self._stride, self._kv_step)

    def passed(self) -> None:
        """The pass that reads it is queued: the table is looked at once more behind it."""
        if self._pending is not None:
            self._pending.look(self._stride, self._kv_step)

    def faults(self) -> list[Fault]:
        """Of the last table. Waits for the looks at it: for the pass, where `passed` was called."""
        check, self._pending = self._pending, None
        if check is None:
            return []
        wrong = check.wrong_rows()
        if not self._is_understood and not self._understands(check, wrong):
            return []
        self.num_checked += int(check.counts.sum())
        return [
            (check.requests[row], int(check.expected[row, column])) for row, column in wrong.items()
        ]

    def _understands(self, check: _Check, wrong: dict[int, int]) -> bool:
        """Whether the table is laid out as we read it: known by the first block that is right.

        Block 0 is at offset 0 in any layout, and so tells nothing.
        """
        for row, count in enumerate(check.counts.tolist()):
            right = check.expected[row, : wrong.get(row, count)]
            if right.any():
                self._is_understood = True
                return True
        if wrong:
            self.turn_off("its entries aren't laid out as we know them")
        return False


class _Check:
    """Of one table, which may be looked at more than once."""

    def __init__(self, table: Tensor, requests: Sequence[int], tables: Tables) -> None:
        self.requests = list(requests)
        self.expected, self.counts = tables.of(self.requests)
        self._table = table
        self._on_device: tuple[Tensor, Tensor] | None = None
        self._found: list[tuple[Tensor, Any]] = []  # and what says that it is there

    @property
    def fits(self) -> bool:
        """Whether the table has room for what it should name."""
        _, num_rows, _, num_columns = self._table.shape
        return self.expected.shape[1] <= num_columns and len(self.requests) <= num_rows

    def look(self, stride: int, kv_step: int) -> None:
        """At the table as it is once all has run that is on the stream now. Waits for nothing."""
        table = self._table
        if table.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        if self._on_device is None:
            self._on_device = _moved(self.expected, table), _moved(self.counts, table)
        first_faults = _kernel(table.device) if table.is_cuda else table_check.first_faults
        first = first_faults(table, *self._on_device, stride, kv_step)
        if not table.is_cuda:
            self._found.append((first, None))
            return
        here = torch.empty(first.shape, dtype=first.dtype, pin_memory=True)
        here.copy_(first, non_blocking=True)
        self._found.append((here, torch.cuda.current_stream(table.device).record_event()))

    def wrong_rows(self) -> dict[int, int]:
        """Row to its first faulty column in any look. Waits for them."""
        wrong: dict[int, int] = {}
        for first, event in self._found:
            if event is not None:
                event.synchronize()
            for row, column in enumerate(first.tolist()):
                if column != table_check.FINE:
                    wrong[row] = min(column, wrong.get(row, column))
        return wrong


def _moved(array: Any, table: Tensor) -> Tensor:
    """To where the table is, from memory that nobody writes to again: no copy is overtaken."""
    tensor = torch.from_numpy(array)
    if not table.is_cuda:
        return tensor
    return tensor.contiguous().pin_memory().to(table.device, non_blocking=True)


@functools.cache
def _kernel(device: torch.device) -> Callable[..., Tensor]:
    """Tried, and so compiled, before it is needed; torch does it where that doesn't work.

    Triton needs a compiler, which not every machine has.
    """
    try:
        from engines.trtllm.table_check_triton import first_faults

        nothing = torch.zeros(1, 1, 2, 1, dtype=torch.int32, device=device)
        first_faults(nothing, nothing[0, :, 0], nothing[0, 0, 0], 1, 0).tolist()
    except Exception as error:  # noqa: BLE001 - whatever is missing, torch is there
        log.warning("bulkhead guard: torch checks the device's table (%s)", type(error).__name__)
        return table_check.first_faults
    return first_faults


def reach(filled: Callable[[Any], None]) -> str:
    """Has `filled(metadata)` called whenever attention's metadata is prepared.

    Returns why not, where the version isn't as we know it; "" where it is.
    """
    try:
        metadata = getattr(importlib.import_module(METADATA_MODULE), METADATA_CLASS)
        prepare = metadata.prepare
    except (ImportError, AttributeError) as error:
        return f"this version has no {METADATA_CLASS}.prepare ({type(error).__name__})"

    @functools.wraps(prepare)
    def prepared(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = prepare(self, *args, **kwargs)
        filled(self)
        return result

    metadata.prepare = prepared
    return ""


def table_in(metadata: Any) -> tuple[Tensor, list[int]] | None:
    """The table that was prepared and its rows' requests; None where there are none.

    Nor of a cache that the connector isn't told of: a draft model's, or one of an encoder's output,
    has other blocks for the same requests.
    """
    manager = getattr(metadata, "kv_cache_manager", None)
    is_told = getattr(manager, "kv_connector_manager", True) is not None
    if not is_told or getattr(manager, "is_draft", False) or getattr(metadata, "is_cross", False):
        return None
    table = getattr(metadata, "kv_cache_block_offsets", None)
    requests = getattr(metadata, "request_ids", None)
    if not isinstance(table, Tensor) or table.dim() != 4 or table.shape[2] != 2 or not requests:
        return None
    return table, [int(request) for request in requests]
