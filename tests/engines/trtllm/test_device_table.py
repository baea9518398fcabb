"""When the device's table is looked at, and when what it says isn't believed."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from engines.trtllm import device_table, table_check
from engines.trtllm.device_table import DeviceTable, table_in

LAYERS = 3
OFFSET = 2 * LAYERS  # of a block from the one before it


def watching() -> DeviceTable:
    """Two requests, with the blocks 4, 5 and 6."""
    device = DeviceTable()
    device.pool_is(torch.zeros(16, LAYERS, 2, 8))
    device.start(((1, True, (4, 5)), (2, True, (6,))))
    return device


def table(*rows: list[int]) -> Tensor:
    """As attention has it, with room for more."""
    made = torch.zeros(1, 4, 2, 8, dtype=torch.int32)
    for row, blocks in enumerate(rows):
        offsets = torch.tensor(blocks, dtype=torch.int32) * OFFSET
        made[0, row, 0, : len(blocks)], made[0, row, 1, : len(blocks)] = offsets, offsets + 1
    return made


def test_a_right_table_has_no_fault_and_each_block_counts() -> None:
    device = watching()
    device.filled(table([4, 5], [6]), [1, 2])
    device.passed()
    assert device.faults() == []
    assert device.num_checked == 3


def test_a_row_that_nobody_told_of_is_not_looked_at() -> None:
    """As those that fill a batch up to a CUDA graph's size."""
    device = watching()
    device.filled(table([4, 5], [9], [6]), [1, 2**64 - 7, 2])
    assert device.faults() == []
    assert device.num_checked == 3


def test_the_rows_of_other_requests_are_a_fault_of_both() -> None:
    device = watching()
    device.filled(table([4, 5], [6]), [2, 1])
    assert sorted(device.faults()) == []  # not believed: nothing was right yet
    assert device.is_off
    device = watching()
    device.filled(table([4, 5], [6]), [1, 2])
    assert device.faults() == []
    device.start(())
    device.filled(table([4, 5], [6]), [2, 1])
    assert sorted(device.faults()) == [(1, 4), (2, 6)]


def test_a_fault_is_told_once() -> None:
    device = watching()
    device.filled(table([4, 5], [7]), [1, 2])
    assert device.faults() == [(2, 6)]
    assert device.faults() == []


def test_block_0_tells_nothing_of_a_layout() -> None:
    device = watching()
    device.start(((3, True, (0,)),))
    device.filled(table([0]), [3])
    assert device.faults() == []
    assert device.num_checked == 0
    assert not device.is_off


@pytest.mark.parametrize("shape", [(16, LAYERS, 8), (16, LAYERS, 3, 8), (16, LAYERS, 2, 8, 1)])
def test_a_pool_of_another_shape_is_not_understood(shape: tuple[int, ...]) -> None:
    device = DeviceTable()
    device.pool_is(torch.zeros(shape))
    assert "shape" in device.is_off
    device.start(((1, True, (4,)),))
    device.filled(table([9]), [1])
    assert device.faults() == []


def test_a_pool_of_latents_has_one_number_a_block() -> None:
    device = DeviceTable()
    device.pool_is(torch.zeros(16, LAYERS, 1, 8))
    device.start(((1, True, (4,)),))
    latents = torch.full((1, 1, 2, 1), 4 * LAYERS, dtype=torch.int32)
    device.filled(latents, [1])
    assert device.faults() == []
    assert device.num_checked == 1


def test_a_table_that_is_too_small_is_not_understood() -> None:
    device = watching()
    device.filled(table([4, 5], [6])[:, :, :, :1], [1, 2])
    assert "too small" in device.is_off


def no_compiler(*_: object) -> Tensor:
    raise RuntimeError("Failed to find C compiler")


@pytest.mark.parametrize(
    "module",
    [None, SimpleNamespace(first_faults=no_compiler)],
    ids=["no triton", "no compiler"],
)
def test_where_the_kernel_does_not_run_torch_does_its_work(
    module: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "engines.trtllm.table_check_triton", module)
    device_table._kernel.cache_clear()
    assert device_table._kernel(torch.device("cpu")) is table_check.first_faults
    assert "torch checks the device's table" in caplog.text


def test_where_it_runs_it_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[object, ...]] = []

    def kernel(*step: Any) -> Tensor:
        tried.append(step)
        return table_check.first_faults(*step)

    module = SimpleNamespace(first_faults=kernel)
    monkeypatch.setitem(sys.modules, "engines.trtllm.table_check_triton", module)
    device_table._kernel.cache_clear()
    found = {device_table._kernel(torch.device("cpu")) for _ in range(2)}
    device_table._kernel.cache_clear()
    assert found == {kernel}
    assert len(tried) == 1


def metadata(**changes: object) -> SimpleNamespace:
    """As attention's, of the cache that the connector is told of."""
    manager = SimpleNamespace(kv_connector_manager=object(), is_draft=False)
    right = {"kv_cache_block_offsets": table([4]), "request_ids": [1], "kv_cache_manager": manager}
    return SimpleNamespace(**right | changes)


@pytest.mark.parametrize(
    "prepared",
    [metadata(), metadata(kv_cache_manager=None), metadata(kv_cache_manager=SimpleNamespace())],
    ids=["as now", "no cache named", "as before the connector was named there"],
)
def test_a_table_is_taken(prepared: SimpleNamespace) -> None:
    found = table_in(prepared)
    assert found is not None
    assert found[0] is prepared.kv_cache_block_offsets
    assert found[1] == [1]


@pytest.mark.parametrize(
    "prepared",
    [
        None,
        metadata(kv_cache_block_offsets=None),
        metadata(kv_cache_block_offsets=table([4])[0]),
        metadata(request_ids=None),
        metadata(request_ids=[]),
        metadata(is_cross=True),
        metadata(kv_cache_manager=SimpleNamespace(kv_connector_manager=None)),
        metadata(kv_cache_manager=SimpleNamespace(is_draft=True)),
    ],
    ids=["none", "no table", "flat", "no requests", "empty", "cross", "not ours", "draft"],
)
def test_what_is_no_table_of_ours_is_left_alone(prepared: SimpleNamespace | None) -> None:
    assert table_in(prepared) is None
