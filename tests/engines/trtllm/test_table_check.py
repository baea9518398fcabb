"""The device's block table is checked by a loop, by torch and by a kernel: all say the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from torch import Tensor

from engines.trtllm import table_check


class Step(NamedTuple):
    """A table as attention reads it, and what it should name."""

    table: Tensor
    expected: Tensor
    counts: Tensor
    stride: int
    kv_step: int

    def loop(self) -> list[int]:
        """Entry by entry, in Python's own ints."""
        return [self._first_fault(row) for row in range(len(self.counts))]

    def _first_fault(self, row: int) -> int:
        for column in range(int(self.counts[row])):
            block = int(self.expected[row, column])
            right = [block * self.stride, block * self.stride + self.kv_step]
            pools = [pool[row, :, column].tolist() for pool in self.table]
            if block < 0 or any(found != right for found in pools):
                return column
        return -1


def table_of(
    seed: int, rows: int, columns: int, pools: int, layers: int, kv: int, harms: int
) -> Step:
    """Rows of random blocks, in a table that has more rows and columns, harmed in some places."""
    random = Random(seed)
    stride = layers * kv
    expected = torch.tensor(
        [[random.randrange(2**31 // max(stride, 1)) for _ in range(columns)] for _ in range(rows)],
        dtype=torch.int32,
    ).reshape(rows, columns)
    table = torch.full((pools, rows + 2, 2, columns + 3), 7, dtype=torch.int32)
    table[:, :rows, 0, :columns] = expected * stride
    table[:, :rows, 1, :columns] = expected * stride + kv - 1
    for _ in range(harms if rows and columns and pools else 0):
        place = tuple(random.randrange(size) for size in (pools, rows, 2, columns))
        table[place] += random.choice([-stride, -1, 1, stride, 2**31 - 1])
    counts = torch.tensor([random.randint(0, columns) for _ in range(rows)], dtype=torch.int32)
    return Step(table, expected, counts, stride, kv - 1)


steps = st.builds(
    table_of,
    seed=st.integers(0, 2**32),
    rows=st.integers(0, 5),
    columns=st.integers(0, 9),
    pools=st.integers(1, 2),
    layers=st.integers(1, 80),
    kv=st.integers(1, 2),
    harms=st.integers(0, 4),
)


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    """Interpreted: tests/conftest.py tells triton so, before it is first imported."""
    module: ModuleType = pytest.importorskip(
        "engines.trtllm.table_check_triton", reason="triton isn't installed"
    )
    return module


@given(steps)
def test_torch_says_what_a_loop_says(step: Step) -> None:
    assert table_check.first_faults(*step).tolist() == step.loop()


@settings(max_examples=40)
@given(steps)
@example(table_of(1, rows=0, columns=0, pools=1, layers=1, kv=2, harms=0))
@example(table_of(2, rows=3, columns=0, pools=1, layers=1, kv=2, harms=0))
@example(table_of(3, rows=3, columns=700, pools=2, layers=32, kv=2, harms=3))
def test_the_kernel_says_what_torch_says(kernels: ModuleType, step: Step) -> None:
    found: Tensor = kernels.first_faults(*step)
    assert found.dtype == torch.int32
    assert found.tolist() == step.loop()


def test_at_the_borders_of_what_one_turn_looks_at(kernels: ModuleType) -> None:
    for column in (0, kernels.AT_ONCE - 1, kernels.AT_ONCE, 2 * kernels.AT_ONCE, 699):
        step = table_of(4, rows=2, columns=700, pools=1, layers=4, kv=2, harms=0)
        step.counts[:] = 700
        step.table[0, 1, 1, column] += 1
        assert kernels.first_faults(*step).tolist() == [-1, column]
        step.counts[1] = column
        assert kernels.first_faults(*step).tolist() == [-1, -1]


def test_a_table_that_is_a_view(kernels: ModuleType) -> None:
    step = table_of(5, rows=3, columns=8, pools=2, layers=2, kv=2, harms=2)
    wide = torch.stack([step.table, step.table + 1], dim=4)
    view = step._replace(table=wide[:, :, :, :, 0])
    assert not view.table.is_contiguous()
    assert kernels.first_faults(*view).tolist() == step.loop()
    assert table_check.first_faults(*view).tolist() == step.loop()


def test_a_block_that_is_no_block_is_expected_nowhere(kernels: ModuleType) -> None:
    step = table_of(6, rows=1, columns=2, pools=1, layers=2, kv=2, harms=0)
    step.counts[:] = 2
    step.expected[0, 1] = -1
    step.table[0, 0, :, 1] = torch.tensor([-4, -3], dtype=torch.int32)
    assert table_check.first_faults(*step).tolist() == [1]
    assert kernels.first_faults(*step).tolist() == [1]


@pytest.mark.usefixtures("kernels")  # skips without triton
def test_it_compiles_for_gpus(tmp_path: Path) -> None:
    script = Path(__file__).with_name("table_compiled_for_cuda.py")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.engines.trtllm." + script.stem],
        cwd=script.parents[3],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.stdout.split() == ["_rows_kernel"], result.stderr
