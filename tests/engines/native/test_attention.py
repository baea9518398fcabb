"""Native attention over pages: near float64, and the same bits however a prompt is cut.

The bound: values of size 1 are off by 2e-6 in float32 arithmetic, and by 2^-7 of the largest V
where queries and weights are rounded to bfloat16 (AVX-512), on top of what pages round.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from engines.kernels.native import IS_BUILT, module
from tests.engines.native.paged_row import SHAPES, Floats, Row, Shape, rounded

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="needs engines._native: make native")

ISAS = module.isas() if IS_BUILT else []
NUMBERS = ("bfloat16", "fp8_e4m3")
BOUNDS = {"scalar": 4e-6, "avx2": 4e-6, "avx512": 2**-7, "amx": 2**-7}
every_isa = pytest.mark.parametrize("isa", ISAS)
every_numbers = pytest.mark.parametrize("numbers", NUMBERS)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


@every_isa
@every_numbers
@every_shape
def test_it_is_near_float64(shape: Shape, numbers: str, isa: str) -> None:
    scales = (0.375, 1.875) if numbers == "fp8_e4m3" else (1.0, 1.0)
    row = Row(shape, numbers, 301, isa, scales)
    found, exact = row.in_chunks(), row.exact()
    largest = np.abs(row.v).max()
    np.testing.assert_allclose(found, exact, rtol=0, atol=BOUNDS[isa] * largest)


@every_isa
@every_numbers
@every_shape
def test_a_prompt_is_the_same_bits_in_any_cut(shape: Shape, numbers: str, isa: str) -> None:
    row = Row(shape, numbers, 277, isa)
    whole = row.in_chunks()
    same_bits(row.in_chunks(*range(1, 277)), whole)  # decoded one by one
    same_bits(row.in_chunks(1, 2, 5, 18, 49, 127, 130, 201), whole)
    for token in (0, 1, 127, 128, 255, 256, 276):
        same_bits(row.attend(token, token + 1, split=True), whole[token : token + 1])


@every_isa
@every_numbers
@every_shape
def test_tables_of_64_and_of_128_are_the_same_bits(shape: Shape, numbers: str, isa: str) -> None:
    large = Row(shape, numbers, 170, isa).in_chunks(20, 21, 150)
    same_bits(Row(shape, numbers, 170, isa, use_vbmi=False).in_chunks(20, 21, 150), large)


@every_isa
@given(cuts=st.sets(st.integers(1, 698), max_size=12), numbers=st.sampled_from(NUMBERS))
@settings(max_examples=15, deadline=None)
def test_a_long_prompt_is_the_same_bits_in_any_cut(cuts: set[int], numbers: str, isa: str) -> None:
    row = Row(SHAPES[0], numbers, 699, isa)
    whole = row.in_chunks()
    same_bits(row.in_chunks(*sorted(cuts)), whole)
    same_bits(row.attend(698, 699), whole[698:])
    same_bits(row.attend(698, 699, split=True), whole[698:])


@every_isa
@every_numbers
def test_a_row_is_the_same_bits_in_any_company(numbers: str, isa: str) -> None:
    row = Row(SHAPES[0], numbers, 310, isa)
    row.store(0, 310)
    parts = [(0, 40), (309, 310), (40, 41), (100, 290)]  # the queries of each row of the step
    alone = [row.attend(first, last) for first, last in parts]
    row.q[40] = np.nan
    alone[2] = row.attend(40, 41)
    out = np.empty((232, 9, 64), np.float32)
    row.native.attend(
        row.layer,
        np.concatenate([row.q[first:last] for first, last in parts]),
        np.tile(row.pages, (4, 1)),
        np.array([last for _, last in parts]),
        np.array([last - first for first, last in parts]),
        out,
    )
    same_bits(out, np.concatenate(alone))


@every_isa
@every_numbers
@pytest.mark.parametrize("side", ["q", "k", "v"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_reaches_later_tokens_only(
    bad: float, side: str, numbers: str, isa: str
) -> None:
    row = Row(SHAPES[0], numbers, 150, isa)
    sound = row.in_chunks()
    getattr(row, side)[77, :, 5] = bad
    found = row.in_chunks()
    same_bits(row.in_chunks(*range(1, 150)), found)
    same_bits(found[:77], sound[:77])
    if side == "q":
        assert np.isnan(found[77]).all()
        same_bits(found[78:], sound[78:])
    elif np.isnan(bad):
        assert np.isnan(found[77:, :, 5]).all()


@every_isa
@every_numbers
def test_pages_are_written_as_torch_rounds(numbers: str, isa: str) -> None:
    third = float(np.float32(1 / 3))
    scales = (1.0, third) if numbers == "fp8_e4m3" else (1.0, 1.0)
    row = Row(Shape(4, 2, 64, 16), numbers, 160, isa, scales)
    row.k[:] = of_all_sizes().reshape(row.k.shape)
    row.v[:] = np.flip(row.k)
    row.store(0, row.tokens)
    page = np.empty((16, 64), np.float32)
    for index, number in enumerate(row.pages):
        for side, (values, scale) in enumerate(zip((row.k, row.v), row.scales, strict=True)):
            for head in range(2):
                row.native.read_head(int(number), 1, side, head, page)
                tokens = torch.from_numpy(values[index * 16 : index * 16 + 16, head].copy())
                expected = rounded(tokens, numbers, scale).float()
                np.testing.assert_array_equal(page, expected)


def of_all_sizes() -> Floats:
    """Every e4m3 number, what is between two of them, a little more and less, and what is odd."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    positive = np.sort(codes[codes >= 0])
    halves = (positive[1:] + positive[:-1]) / 2
    near = [np.nextafter(halves, limit, dtype=np.float32) for limit in (-np.inf, np.inf)]
    odd = [449, 463.9, 464, 465, 480, 1e30, np.inf, np.nan, 1e-40, 2**-10, 2**-11, 0]
    some = np.concatenate((positive, halves, *near, np.array(odd, np.float32)))
    both = np.concatenate((some, -some)).astype(np.float32)
    rest = np.random.default_rng(0).standard_normal(160 * 2 * 64 - len(both), dtype=np.float32)
    return np.concatenate((both, rest * 20))


@every_isa
@every_numbers
@every_shape
def test_a_store_touches_its_slots_alone(shape: Shape, numbers: str, isa: str) -> None:
    row = Row(shape, numbers, 3 * shape.page_size, isa)
    row.memory[:] = np.random.default_rng(0).integers(0, 256, row.memory.size)
    before = row.memory.copy()
    row.store(1, 2)
    line = shape.head_dim * (2 if numbers == "bfloat16" else 1)
    assert np.count_nonzero(before != row.memory) <= 2 * shape.kv_heads * line
    page = before.size // 6  # 3 of its own, 3 of nobody
    at = int(row.pages[0]) * page
    assert (before[:at] == row.memory[:at]).all()
    assert (before[at + page :] == row.memory[at + page :]).all()
    found = np.empty((shape.page_size, shape.head_dim), np.float32)
    row.native.read_head(int(row.pages[0]), 1, 0, shape.kv_heads - 1, found)
    expected = rounded(torch.from_numpy(row.k[1, -1]), numbers, 1.0)
    np.testing.assert_array_equal(found[1], expected.float())


@every_isa
@every_numbers
def test_what_others_hold_is_no_part_of_it(numbers: str, isa: str) -> None:
    row = Row(SHAPES[0], numbers, 90, isa)
    alone = row.in_chunks()
    taken = set(row.slots().tolist())
    for slot in set(range(9 * 16)) - taken:
        k = np.full((1, 3, 64), 7.0, np.float32)
        row.native.store(1, np.array([slot]), k, k)
    row.native.store(0, row.slots(), row.k * 3, row.v * 3)  # another layer
    same_bits(row.attend(0, 90), alone)


@every_isa
def test_large_scores_stay_finite(isa: str) -> None:
    row = Row(SHAPES[0], "bfloat16", 200, isa)
    row.q *= 300
    found, exact = row.in_chunks(), row.exact()
    assert np.isfinite(found).all()
    if isa not in ("avx512", "amx"):  # there the rounding of q moves such scores by more than 1
        np.testing.assert_allclose(found, exact, rtol=0, atol=2e-3)


def test_what_is_off_is_told() -> None:
    row = Row(SHAPES[0], "bfloat16", 20, "scalar")
    out, tables = np.empty_like(row.q), row.pages[None]
    twenty, attend = np.array([20]), partial(row.native.attend, out=out)
    for call, message in (
        (lambda: attend(2, row.q, tables, twenty, twenty), "no layer 2"),
        (lambda: attend(0, row.q, tables, twenty + 13, twenty), "enough pages"),
        (lambda: attend(0, row.q, tables, twenty - 1, twenty), "number of queries"),
        (lambda: attend(0, row.q, tables, twenty, twenty - 1), "q: "),
        (lambda: attend(0, row.q, tables, twenty, twenty, split=True), "one query a row"),
        (lambda: attend(0, row.q, tables, twenty, twenty.repeat(2)), "one for each row"),
        (lambda: attend(0, row.q, tables + 5, twenty, twenty), "no page"),
        (lambda: attend(0, row.q[:, :4].copy(), tables, twenty, twenty), "kv heads"),
        (lambda: row.native.store(0, row.slots() - 999, row.k, row.v), "past the pages"),
        (lambda: row.native.store(0, row.slots(), row.k[:3], row.v), "k: "),
        (lambda: made(page_size=3), "multiple of 2"),
        (lambda: made(head_dim=24), "multiple of 16"),
        (lambda: made(numbers="int4"), "int4"),
        (lambda: made(memory=np.zeros(1000, np.uint8)), "whole pages"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def made(**changes: Any) -> Any:
    options: dict[str, Any] = {
        "isa": "scalar", "memory": np.zeros(1 << 14, np.uint8), "num_layers": 1, "num_kv_heads": 1,
        "head_dim": 16, "page_size": 4, "numbers": "bfloat16", "k_scales": [1], "v_scales": [1],
    }  # fmt: skip
    return module.PagedAttention(**options | changes)


def same_bits(found: Floats, expected: Floats) -> None:
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
