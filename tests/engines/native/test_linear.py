"""The native products: equal to their torch twins, and each row to itself in any company."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.kernels import linear as twin
from engines.kernels.native import IS_BUILT, module

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="needs engines._native: make native")

KINDS = ("w16a16", "w4a16", "w4a8", "w8a8", "w6a8")
ISAS = module.isas() if IS_BUILT else []
# n and k: blocks and pairs of groups that are full and that aren't, and more of them than a tile.
SHAPES = ((16, 64), (2, 128), (34, 192), (48, 576), (192, 320), (150, 1536))
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Weights:
    """One matrix, packed, and the twin's product with it."""

    kind: str
    n: int
    k: int
    group: int
    packed: NDArray[np.uint8]
    twin: Callable[[Tensor], Tensor]

    def times(
        self, x: Floats, isa: str, *, blocks: int = 0, threads: int = 1, onto: Floats | None = None
    ) -> Floats:
        return module.linear(
            self.kind, self.packed, self.n, self.k, self.group, x,
            isa=isa, blocks=blocks, threads=threads, onto=onto,
        )  # fmt: skip


def make_weights(kind: str, n: int, k: int, group: int = 64) -> Weights:
    chance = torch.Generator().manual_seed(n * k)
    dense = torch.randn(n, k, generator=chance).bfloat16()
    if kind == "w16a16":
        return Weights(
            kind, n, k, 0, module.pack_bf16(bits_of(dense)), partial(twin.w16a16, weight=dense)
        )
    if kind == "w8a8":
        return Weights(
            kind, n, k, 64, module.pack_int8(bits_of(dense)), partial(twin.w8a8, weight=dense)
        )
    if kind == "w6a8":
        return Weights(
            kind, n, k, 64, module.pack_int6(bits_of(dense)), partial(twin.w6a8, weight=dense)
        )
    pairs = torch.randint(0, 256, (n // 2, k), generator=chance, dtype=torch.uint8)
    scales = torch.rand(n, k // group, generator=chance) + 0.01
    packed = module.pack_int4(pairs.numpy(), scales.numpy())
    product = twin.w4a8 if kind == "w4a8" else twin.w4a16
    return Weights(kind, n, k, group, packed, lambda x: product(x, pairs, scales))


def bits_of(numbers: Tensor) -> NDArray[np.uint16]:
    bits: NDArray[np.uint16] = numbers.view(torch.uint16).numpy()
    return bits


def some_x(rows: int, k: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((rows, k), dtype=np.float32)


def all_weights(kinds: tuple[str, ...] = KINDS) -> Iterator[Weights]:
    for kind in kinds:
        for n, k in SHAPES:
            yield make_weights(kind, n, k)
            if kind.startswith("w4") and k % 128 == 0:
                yield make_weights(kind, n, k, group=128)


def same(one: Floats, other: Floats) -> bool:
    """Bit for bit, but for which NaN a NaN is."""
    return np.array_equal(one, other, equal_nan=True)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_product_is_its_twins(kind: str, isa: str) -> None:
    for weights in all_weights((kind,)):
        for rows in (1, 7):
            x = some_x(rows, weights.k)
            wanted = weights.twin(torch.from_numpy(x)).numpy()
            found = weights.times(x, isa)
            # Of sums that may cancel: relative to how large they are as a rule.
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["w4a8", "w8a8", "w6a8"])
def test_integer_products_are_the_twins_to_the_bit_nearly_everywhere(kind: str, isa: str) -> None:
    weights = make_weights(kind, 192, 576)
    x = some_x(64, 576)
    wanted = weights.twin(torch.from_numpy(x)).numpy()
    # The twin rounds a fused multiply-add twice, which once in a great while tells.
    assert np.mean(weights.times(x, isa) == wanted) > 0.9999


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["w4a8", "w8a8", "w6a8"])
def test_integer_products_are_the_same_bits_on_every_cpu(kind: str, isa: str) -> None:
    for weights in all_weights((kind,)):
        x = some_x(13, weights.k)
        assert same(weights.times(x, isa), weights.times(x, "scalar"))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["w4a8", "w8a8", "w6a8"])
def test_any_number_of_rows_is_the_same_bits_on_every_cpu(kind: str, isa: str) -> None:
    """AMX takes many rows in tiles of 16 or fewer, and leaves few to AVX-512."""
    for n, k, group in ((50, 192, 64), (32, 576, 64), (34, 256, 128)):
        weights = make_weights(kind, n, k, group)
        x, onto = some_x(70, k), some_x(70, n, seed=1)
        exact, added = weights.times(x, "scalar"), weights.times(x, "scalar", onto=onto)
        for rows in range(1, 71):
            assert same(weights.times(x[:rows], isa), exact[:rows])
            assert same(weights.times(x[:rows], isa, onto=onto[:rows].copy()), added[:rows])


@pytest.mark.parametrize("kind", ["w16a16", "w4a16"])
def test_without_bf16_instructions_a_product_is_the_same_bits_on_every_cpu(kind: str) -> None:
    """Products of bfloat16 are exact in float32; AVX-512's own adds two of them at a time."""
    for weights in all_weights((kind,)):
        x = some_x(13, weights.k)
        for isa in set(ISAS) - {"avx512", "amx"}:
            assert same(weights.times(x, isa), weights.times(x, "scalar"))


@pytest.mark.parametrize("isa", ISAS)
def test_bf16_products_are_as_near_the_truth_as_float32_sums(isa: str) -> None:
    for weights in all_weights(("w16a16",)):
        x = some_x(9, weights.k)
        exact_x = torch.from_numpy(x).bfloat16().double()
        columns = np.eye(weights.k, dtype=np.float32)
        dense = torch.from_numpy(weights.times(columns, isa)).double()  # [k, n], exact
        bound = (exact_x.abs() @ dense.abs()) * weights.k * 2**-24
        found = torch.from_numpy(weights.times(x, isa)).double()
        assert ((found - exact_x @ dense).abs() <= bound).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_the_same_bits_in_any_batch_and_place(kind: str, isa: str) -> None:
    for n, k in ((150, 320), (48, 576)):
        weights = make_weights(kind, n, k)
        x = some_x(70, k)
        alone = np.concatenate([weights.times(row[None], isa) for row in x])
        for rows in range(2, 71):
            first = (rows * 7) % (71 - rows)
            found = weights.times(x[first : first + rows], isa)
            assert same(found, alone[first : first + rows])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_how_blocks_are_shared_out_changes_no_bit(kind: str, isa: str) -> None:
    weights = make_weights(kind, 300, 192)
    for rows in (1, 2, 5, 33):
        x = some_x(rows, 192)
        whole = weights.times(x, isa)
        for blocks in (1, 2, 3, 4, 5, 7, 8, 18):
            assert same(weights.times(x, isa, blocks=blocks), whole)
        assert same(weights.times(x, isa, blocks=2, threads=2), whole)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_product_can_be_added_to_what_is_there(kind: str, isa: str) -> None:
    weights = make_weights(kind, 34, 192)
    for rows in (1, 20):
        x, onto = some_x(rows, 192), some_x(rows, 34, seed=1)
        assert same(weights.times(x, isa, onto=onto), onto + weights.times(x, isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf])
def test_a_fault_in_a_row_is_that_rows_alone(kind: str, isa: str, fault: float) -> None:
    weights = make_weights(kind, 34, 192)
    for rows in (1, 6, 40):
        x = some_x(rows, 192)
        whole = weights.times(x, isa)
        broken = x.copy()
        broken[rows // 2, 100] = fault
        found = weights.times(broken, isa)
        assert not np.isfinite(found[rows // 2]).any()
        others = np.arange(rows) != rows // 2
        assert same(found[others], whole[others])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_zeros_and_the_largest_values_come_out_exact(kind: str, isa: str) -> None:
    ones = torch.ones(18, 128).bfloat16()
    ones[1] = -1
    if kind == "w16a16":
        packed, values = module.pack_bf16(bits_of(ones)), [1.0, -1.0]
    elif kind == "w8a8":
        packed, values = module.pack_int8(bits_of(ones * 127)), [127.0, -127.0]
    elif kind == "w6a8":
        packed, values = module.pack_int6(bits_of(ones * 31)), [31.0, -31.0]
    else:
        pairs = np.full((9, 128), 0x87, np.uint8)  # 7 and then -8
        packed, values = module.pack_int4(pairs, np.ones((18, 2), np.float32)), [7.0, -8.0]
    x = np.zeros((3, 128), np.float32)
    x[1], x[2] = 127, -127
    found = module.linear(kind, packed, 18, 128, 64, x, isa=isa)
    assert (found[0] == 0).all()
    for column, value in enumerate(values):
        assert found[1, column] == 127 * 128 * value
        assert found[2, column] == -127 * 128 * value


@pytest.mark.parametrize("isa", ISAS)
def test_a_weight_that_is_no_number_shows_in_its_column_alone(isa: str) -> None:
    dense = torch.ones(18, 128).bfloat16()
    dense[17, 5] = torch.nan
    packers = {"w16a16": module.pack_bf16, "w8a8": module.pack_int8, "w6a8": module.pack_int6}
    for kind, pack in packers.items():
        found = module.linear(kind, pack(bits_of(dense)), 18, 128, 64, some_x(9, 128), isa=isa)
        assert np.isnan(found[:, 17]).all()
        assert np.isfinite(found[:, :17]).all()


def test_bf16_weights_take_any_even_k() -> None:
    for isa in ISAS:
        for k in (2, 6, 62, 66, 130):
            weights = make_weights("w16a16", 20, k)
            x = some_x(4, k)
            wanted = weights.twin(torch.from_numpy(x)).numpy()
            np.testing.assert_allclose(weights.times(x, isa), wanted, rtol=1e-5, atol=1e-5)


def test_int4_weights_of_the_small_model_take_27_hundredths_of_bf16s_room() -> None:
    for n, k in ((576, 576), (1536, 576), (576, 1536)):
        int4, bf16 = (module.packed_bytes(kind, n, k, 64) for kind in ("w4a8", "w16a16"))
        assert int4 <= 0.27 * bf16
        assert len(make_weights("w4a8", n, k).packed) == int4


def test_what_does_not_fit_is_refused_and_told() -> None:
    weights = make_weights("w4a8", 32, 128)
    x = some_x(1, 128)
    with pytest.raises(ValueError, match="even k, not 3"):
        module.pack_bf16(np.zeros((4, 3), np.uint16))
    with pytest.raises(ValueError, match="no multiple of its groups' 64"):
        module.pack_int8(np.zeros((4, 96), np.uint16))
    with pytest.raises(ValueError, match="no multiple of its groups' 64"):
        module.pack_int6(np.zeros((4, 96), np.uint16))
    with pytest.raises(ValueError, match="of 64 or, int4, 128 values, not 32"):
        module.pack_int4(np.zeros((4, 128), np.uint8), np.zeros((8, 4), np.float32))
    with pytest.raises(ValueError, match="scales of 4 x 2 don't fit int4 weights of 8 x 128"):
        module.pack_int4(np.zeros((4, 128), np.uint8), np.zeros((4, 2), np.float32))
    with pytest.raises(ValueError, match="unknown product 'w3a3'"):
        module.linear("w3a3", weights.packed, 32, 128, 64, x)
    with pytest.raises(ValueError, match="x has 64 columns; the weights have k = 128"):
        weights.times(some_x(1, 64), "scalar")
    with pytest.raises(ValueError, match=r"this shape has \d+"):
        module.linear("w4a8", weights.packed[:-64], 32, 128, 64, x)
    with pytest.raises(ValueError, match="unknown instruction set 'mmx'"):
        weights.times(x, "mmx")
    with pytest.raises(ValueError, match="the result's shape"):
        weights.times(x, "scalar", onto=some_x(2, 32))
    moved = np.concatenate([np.zeros(8, np.uint8), weights.packed])[8:]
    with pytest.raises(ValueError, match="aligned to 64 bytes"):
        module.linear("w4a8", moved, 32, 128, 64, x)
    with pytest.raises(TypeError):
        module.pack_bf16(np.zeros((4, 4), np.float32))
