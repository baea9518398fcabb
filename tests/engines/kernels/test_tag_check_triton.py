"""The kernels for CUDA say what their twin in torch says: run by triton's interpreter, on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from torch import Tensor

from engines.kernels import tag_check
from tests.engines.kernels.reference import (
    ACTIVE,
    PAGE_SIZE,
    Step,
    harmed_steps,
    null_page_as_own,
    one_page,
    pack,
    sound_steps,
)


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    """Interpreted: tests/conftest.py tells triton so, before it is first imported."""
    module: ModuleType = pytest.importorskip(
        "engines.kernels.tag_check_triton", reason="triton isn't installed"
    )
    return module


def assert_alike(kernels: ModuleType, step: Step) -> None:
    pages: list[Callable[..., Tensor]] = [kernels.faulty_pages, tag_check.faulty_pages]
    slots: list[Callable[..., Tensor]] = [kernels.faulty_slots, tag_check.faulty_slots]
    ours, twins = (check(*step.page_arrays()) for check in pages)
    assert ours.dtype == torch.bool
    assert torch.equal(ours, twins)
    ours, twins = (check(*step.slot_arrays(), PAGE_SIZE, ACTIVE) for check in slots)
    assert ours.dtype == torch.bool
    assert torch.equal(ours, twins)


@settings(max_examples=60)
@given(sound_steps() | harmed_steps())
@example(null_page_as_own())
@example(replace(one_page(), positions=[-1]))
@example(replace(one_page(), slots=[-1], positions=[-PAGE_SIZE]))
@example(replace(one_page(), tags=[0]))
def test_any_step(kernels: ModuleType, step: Step) -> None:
    assert_alike(kernels, step)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_a_step_of_several_blocks(kernels: ModuleType, seed: int) -> None:
    """Rows and tokens of more than one program, harmed at the programs' borders."""
    step = wide_step()
    random = Random(seed)
    for edge in (kernels.PAGES_AT_ONCE, 2 * kernels.PAGES_AT_ONCE):
        for column in (edge - 1, edge):
            step.block_tables[random.randrange(3)][column] += random.choice([0, 1, 2**62])
    for token in (kernels.TOKENS_AT_ONCE - 1, kernels.TOKENS_AT_ONCE, len(step.slots) - 1):
        step.slots[token] += random.choice([0, PAGE_SIZE, -(2**62)])
    assert_alike(kernels, step)


def wide_step() -> Step:
    """Three rows of 600, 512 and 257 pages, all of them being written."""
    lengths = [600, 512, 257]
    ends = list(accumulate(lengths, initial=1))
    tables = [list(range(start, end)) for start, end in pairwise(ends)]
    written = [(row, column) for row, count in enumerate(lengths) for column in range(count)]
    tags = [0, *(pack(row + 1, page) for row, table in enumerate(tables) for page in table)]
    return Step(
        tags=tags,
        states=[ACTIVE] * len(tags),
        refs=[1] * len(tags),
        owners=[-1, *(row for row, _ in written)],
        block_tables=[table + [0] * (600 - len(table)) for table in tables],
        expected_tags=[
            [tags[page] for page in table] + [0] * (600 - len(table)) for table in tables
        ],
        row_domains=[1, 2, 3],
        row_owners=[0, 1, 2],
        num_pages=lengths,
        slots=[page * PAGE_SIZE for table in tables for page in table],
        token_rows=[row for row, _ in written],
        positions=[column * PAGE_SIZE for _, column in written],
    )


def test_a_sound_step_of_several_blocks_has_no_fault(kernels: ModuleType) -> None:
    step = wide_step()
    assert not kernels.faulty_pages(*step.page_arrays()).any()
    assert not kernels.faulty_slots(*step.slot_arrays(), PAGE_SIZE, ACTIVE).any()


@pytest.mark.usefixtures("kernels")  # skips without triton
def test_they_compile_for_gpus(tmp_path: Path) -> None:
    script = Path(__file__).with_name("compiled_for_cuda.py")
    result = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.engines.kernels." + script.stem],
        cwd=script.parents[3],
        env=without_interpreter() | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.stdout.split() == ["_pages_kernel", "_slots_kernel"], result.stderr


def without_interpreter() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
