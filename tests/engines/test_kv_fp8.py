"""FP8 pages: every code, every bfloat16 value, and how far a stored number may be off."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.embedded.kv import Scales
from engines.embedded.kv.codecs import AT_ONCE, Fp8, to_e4m3

NAN = (0x7F, 0xFF)
SCALES = [1.0, 0.0233, 0.004]
Floats = NDArray[np.float64]


def value_of(code: int) -> float:
    """By the format's definition: sign, 4 bits of exponent with bias 7, 3 of fraction."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, fraction = code >> 3 & 15, code & 7
    if code in NAN:
        return math.nan
    if exponent == 0:
        return sign * fraction * 2.0**-9
    return sign * (1 + fraction / 8) * 2.0 ** (exponent - 7)


VALUES = np.array([value_of(code) for code in range(127)])  # 0 to 448, ascending, by code


def nearest(values: Floats) -> NDArray[np.uint8]:
    """The code of each value, by comparison of distances in float64: ties to the even code."""
    size = np.abs(values)
    above = np.searchsorted(VALUES, np.minimum(size, 448.0))
    below = np.maximum(above - 1, 0)
    up, down = VALUES[above] - np.minimum(size, 448.0), np.minimum(size, 448.0) - VALUES[below]
    code = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, below)
    return (code | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


def codes_of(values: Tensor) -> list[int]:
    codes: list[int] = to_e4m3(values).tolist()
    return codes


def decoded(codes: Tensor, dtype: torch.dtype, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """The same codes read as K with this scale, and as V with twice that."""
    scales = Scales((1.0, scale), (1.0, 2 * scale))
    return Fp8(dtype, scales).decode(1, torch.stack([codes, codes]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_code_is_read_as_its_value(dtype: torch.dtype) -> None:
    """Beside each other code, for two are looked up at once."""
    codes = torch.cartesian_prod(*[torch.arange(256, dtype=torch.uint8)] * 2)
    expected = torch.tensor([value_of(code) for code in range(256)], dtype=torch.float64)
    k, _ = decoded(codes, dtype)
    assert k.dtype == dtype
    torch.testing.assert_close(k.double(), expected[codes.long()], rtol=0, atol=0, equal_nan=True)


def test_more_codes_than_are_looked_up_at_once_are_read_alike() -> None:
    """Over the seams, and with a last part that isn't full."""
    codes = torch.arange(2 * AT_ONCE + 6).to(torch.uint8)
    values = torch.tensor([value_of(code) for code in range(256)])
    k, v = decoded(codes, torch.float32)
    torch.testing.assert_close(k, values[codes.long()], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(v, k * 2, rtol=0, atol=0, equal_nan=True)


def test_every_value_is_stored_as_its_code() -> None:
    """Both zeros among them, and all subnormals."""
    for dtype in (torch.bfloat16, torch.float32):
        values = torch.tensor([value_of(code) for code in range(256)], dtype=dtype)
        codes = codes_of(values)
        assert [code for code in range(256) if code not in NAN and codes[code] != code] == []


def test_every_bfloat16_value_is_stored_as_the_nearest_code() -> None:
    """All 65,536 of them, infinities included: these are the largest numbers, and saturate."""
    values = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.bfloat16)
    codes, exact = to_e4m3(values).numpy(), values.double().numpy()
    numbers = ~np.isnan(exact)
    assert np.array_equal(codes[numbers], nearest(exact[numbers]))
    assert np.isin(codes[~numbers], NAN).all()


def test_ties_go_to_the_even_code_and_what_is_beside_them_does_not() -> None:
    """Between each two codes, subnormals included, in float32."""
    ties = torch.tensor((VALUES[:-1] + VALUES[1:]) / 2, dtype=torch.float32)
    below = torch.nextafter(ties, torch.zeros_like(ties))
    above = torch.nextafter(ties, torch.full_like(ties, math.inf))
    lower = list(range(126))
    assert codes_of(ties) == [code + code % 2 for code in lower]
    assert codes_of(below) == lower
    assert codes_of(above) == [code + 1 for code in lower]
    assert codes_of(-ties) == [code + code % 2 + 128 for code in lower]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_too_large_saturates_and_nan_stays_nan(dtype: torch.dtype) -> None:
    """464 would be the tie with a code that isn't there."""
    large = torch.tensor([448.0, 449.0, 464.0, 480.0, 1e30, math.inf], dtype=dtype)
    assert codes_of(large) == [0x7E] * 6
    assert codes_of(-large) == [0xFE] * 6
    assert set(codes_of(torch.tensor([math.nan, -math.nan], dtype=dtype))) <= set(NAN)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_stored_number_is_off_by_no_more_than_stated(dtype: torch.dtype, scale: float) -> None:
    """Half a step: 2^-4 of the value, or 2^-10 of the scale. Then what the dtypes round:

    2^-23 for the division and product in float32, and where a scale was applied, half a step of
    the compute dtype. Over 13 binades on either side of the scale; K and V each by its own.
    """
    generator = torch.Generator().manual_seed(7)
    spread = torch.randn(200_000, generator=generator).sign() * torch.exp2(
        torch.rand(200_000, generator=generator) * 26 - 18
    )
    values = (spread * 448 / 256 * scale).to(dtype)
    codec = Fp8(dtype, Scales((1.0, scale), (1.0, 2 * scale)))
    read = codec.decode(1, torch.stack(codec.encode(1, values, values)))
    exact = values.double()
    for found, own in zip(read, (scale, 2 * scale), strict=True):
        stored = torch.maximum(exact.abs() * 2.0**-4, torch.tensor(own * 2.0**-10).double())
        rounding = 2.0**-23 + (2.0**-8 if dtype == torch.bfloat16 else 2.0**-24)
        bound = stored * (1 + 2.0**-20) + (exact.abs() + stored) * (0 if own == 1 else rounding)
        off = (found.double() - exact).abs()
        assert bool((off <= bound).all())
        assert float((off / bound).max()) > 0.9  # the bound is tight, so it would see a fault


def test_a_layer_has_its_own_scales() -> None:
    """K's and V's apart, and no other layer's."""
    codec = Fp8(torch.float32, Scales((1.0, 0.5), (0.25, 2.0)))
    ones = torch.ones(4)
    assert [int(side[0]) for side in codec.encode(0, ones, ones)] == [0x38, 0x48]  # 1, 4
    assert [int(side[0]) for side in codec.encode(1, ones, ones)] == [0x40, 0x30]  # 2, 0.5
    for layer in (0, 1):
        for side in codec.decode(layer, torch.stack(codec.encode(layer, ones, ones))):
            assert torch.equal(side, ones)


def test_scales_are_told_apart_by_their_digest() -> None:
    """Each of them counts, and where it stands; scales of 1 are no scales."""
    some = [
        Scales((0.5, 1.0), (1.0, 1.0)),
        Scales((1.0, 0.5), (1.0, 1.0)),
        Scales((1.0, 1.0), (0.5, 1.0)),
        Scales((0.5, 0.5), (1.0, 1.0)),
        Scales((0.5,), (1.0,)),
        Scales((0.5000001, 1.0), (1.0, 1.0)),
    ]
    digests = {scales.digest for scales in some}
    assert len(digests) == len(some)
    assert all(len(digest) == 64 for digest in digests)
    assert Scales((0.5, 1.0), (1.0, 1.0)).digest == some[0].digest
    assert Scales.unit(2).digest == Scales((1.0,) * 2, (1.0,) * 2).digest == "unit"
