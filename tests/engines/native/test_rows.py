"""Rows between the products: near float64, equal to their twins, and of odd lengths too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engines.kernels import rows as twin
from engines.kernels.native import IS_BUILT, module

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="needs engines._native: make native")

ISAS = module.isas() if IS_BUILT else []
LENGTHS = (1, 3, 16, 29, 64, 576, 1537)  # of a row: less than a register, and more
Floats = NDArray[np.float32]


def some(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def with_oddities(x: Floats) -> Floats:
    """A row each of NaN, infinities, zeros and denormal numbers."""
    x = np.tile(x, (5, 1))
    x[0, -1], x[1, 0], x[2, -1] = np.nan, np.inf, -np.inf
    x[3], x[4] = 0, 1e-40
    return x


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("isa", ISAS)
def test_a_norm_is_near_float64(isa: str, k: int) -> None:
    x, weight, out = some(3, k) * 100, some(k, seed=1), np.empty((3, k), np.float32)
    x[1] = 0
    module.rms_norm(isa, x, weight, 1e-5, out)
    exact = twin.rms_norm(torch.from_numpy(x).double(), torch.from_numpy(weight).double(), 1e-5)
    np.testing.assert_allclose(out, exact, rtol=1e-6, atol=0)
    module.rms_norm(isa, x, weight, 1e-5, x)
    np.testing.assert_array_equal(x, out)  # in place


@pytest.mark.parametrize("isa", ISAS)
def test_a_broken_row_stays_alone(isa: str) -> None:
    x = with_oddities(some(1, 29))
    weight, out = some(29, seed=1), np.empty_like(x)
    module.rms_norm(isa, x, weight, 1e-5, out)
    assert np.isnan(out[0]).all()
    assert np.isfinite(out[3:]).all()
    module.swiglu(isa, x, x, out)
    assert np.isnan(out[0]).sum() == 1
    assert np.isfinite(out[3:]).all()


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("isa", ISAS)
def test_rounding_to_bf16_is_torchs(isa: str, k: int) -> None:
    x, factors = with_oddities(some(1, k)), some(k, seed=1)
    out = np.empty(x.shape, np.uint16)
    for by in (None, factors):
        module.to_bf16(isa, x, by, out)
        expected = twin.to_bf16(*(torch.from_numpy(of) for of in (x, by) if of is not None))
        np.testing.assert_array_equal(
            torch.from_numpy(out).view(torch.bfloat16).float(), expected.float()
        )


@pytest.mark.parametrize("isa", ISAS)
def test_rounding_to_bf16_goes_to_even(isa: str) -> None:
    bits = np.arange(0x3F800000, 0x3F8A0000, 0x1111 // 2, dtype=np.uint32)
    ties = np.arange(0x3F808000, 0x40808000, 0x10000, dtype=np.uint32)
    largest = np.array([0x7F7FFFFF, 0xFF7FFFFF, 0x7F800001, 0x7FFFFFFF], np.uint32)
    x = np.concatenate((bits, ties, largest)).view(np.float32)[None]
    out = np.empty(x.shape, np.uint16)
    module.to_bf16(isa, x, None, out)
    expected = torch.from_numpy(x).bfloat16()
    np.testing.assert_array_equal(
        torch.from_numpy(out).view(torch.bfloat16).float(), expected.float()
    )


@pytest.mark.parametrize("k", [64, 192, 576])
@pytest.mark.parametrize("isa", ISAS)
def test_rounding_to_int8_is_the_twins(isa: str, k: int) -> None:
    x, factors = with_oddities(some(1, k)), some(k, seed=1)
    for by in (None, factors):
        out, scales, sums = ints_of(isa, x, by)
        expected = twin.to_int8(*(torch.from_numpy(of) for of in (x, by) if of is not None))
        np.testing.assert_array_equal(scales, expected.scales)
        whole = ~np.isnan(scales)
        found, wanted = (of.reshape(5, -1, 64)[whole] for of in (out, expected.values.numpy()))
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(sums, out.reshape(5, -1, 64).sum(-1, dtype=np.int32))
    assert np.isnan(scales[:3]).sum() == 3  # their group alone


def ints_of(
    isa: str, x: Floats, factors: Floats | None
) -> tuple[NDArray[np.int8], Floats, NDArray[np.int32]]:
    rows, k = x.shape
    out, scales = np.empty((rows, k), np.int8), np.empty((rows, k // 64), np.float32)
    sums = np.empty((rows, k // 64), np.int32)
    module.to_int8(isa, x, factors, out, scales, sums)
    return out, scales, sums


@pytest.mark.parametrize("isa", ISAS)
def test_the_exponential_is_within_2_ulp(isa: str) -> None:
    # Under -20 what swiglu divides by is exp(-gate); two more roundings are its own.
    gate = np.linspace(-87, 88, 100_003, dtype=np.float32)[None]
    ones, out = np.ones_like(gate), np.empty_like(gate)
    module.swiglu(isa, gate, ones, out)
    exact = gate / (1 + np.exp(-gate.astype(np.float64)))
    np.testing.assert_allclose(out, exact, rtol=3 * 2**-23, atol=0)


@pytest.mark.parametrize("isa", ISAS)
def test_swiglu_at_the_ends(isa: str) -> None:
    gate = np.array([[-1e30, -200, -104, -89, 0, 89, 104, 200, 1e30, np.nan]], np.float32)
    up, out = np.full_like(gate, 2), np.empty_like(gate)
    module.swiglu(isa, gate, up, out)
    expected = twin.swiglu(torch.from_numpy(gate).double(), torch.from_numpy(up).double())
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-36)


@pytest.mark.parametrize("dim", [2, 16, 26, 64, 128])
@pytest.mark.parametrize("isa", ISAS)
def test_heads_are_turned(isa: str, dim: int) -> None:
    x, angles = some(3, 5, dim), some(3, dim // 2, seed=1)
    cos, sin = np.cos(angles), np.sin(angles)
    expected = twin.rope(*(torch.from_numpy(of.copy()).double() for of in (x, cos, sin)))
    module.rope(isa, x, cos, sin)
    np.testing.assert_allclose(x, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("n", [*LENGTHS, 49152])
@pytest.mark.parametrize("isa", ISAS)
def test_argmax_is_the_first_of_equals(isa: str, n: int) -> None:
    chance = np.random.default_rng(n)
    x = chance.integers(-3, 3, (40, n)).astype(np.float32)
    x[20:] = some(20, n)
    x[0], x[1], x[2, n // 2], x[3, n - 1] = -np.inf, np.nan, np.inf, np.nan
    x[4, 0], x[5, n // 2] = -np.inf, -np.nan
    out = np.empty(40, np.int32)
    module.argmax(isa, x, out)
    np.testing.assert_array_equal(out, twin.argmax(torch.from_numpy(x)))
    assert (out[:4] == -1).all()
    assert out[5] == -1


@pytest.mark.parametrize("isa", ISAS)
def test_argmax_of_nothing(isa: str) -> None:
    out = np.empty(1, np.int32)
    module.argmax(isa, np.empty((1, 0), np.float32), out)
    assert out[0] == -1


def test_what_is_off_is_told() -> None:
    x, out = some(2, 65), np.empty((2, 65), np.float32)
    with pytest.raises(ValueError, match="weight: one for each column"):
        module.rms_norm("scalar", x, some(64), 1e-5, out)
    with pytest.raises(ValueError, match="multiple of 64"):
        ints_of("scalar", x, None)
    with pytest.raises(ValueError, match="out: the shape of gate"):
        module.swiglu("scalar", x, x, out[:1])
    with pytest.raises(ValueError, match="factors: one for each"):
        module.to_bf16("scalar", x, some(3), np.empty((2, 65), np.uint16))
    with pytest.raises(ValueError, match="instruction set"):
        module.swiglu("sparc", x, x, out)
