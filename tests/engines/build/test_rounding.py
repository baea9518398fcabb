"""The grid, error feedback and packing: what is chosen is never worse, and comes back as it was."""

from __future__ import annotations

import pytest
import torch

from engines.build import feedback
from engines.build.feedback import Rounded, rounded
from engines.build.grid import fit_scales, nearest, spread, to_bf16
from engines.build.packing import pack, unpack

GROUP = 64


@pytest.fixture
def problem() -> tuple[torch.Tensor, torch.Tensor]:
    """Weights [48, 192], and X^T X of inputs that depend on each other."""
    chance = torch.Generator().manual_seed(3)
    weights = torch.randn(48, 192, generator=chance) * 0.1
    mixing = torch.randn(192, 192, generator=chance)
    inputs = torch.randn(1024, 192, generator=chance) @ mixing * torch.linspace(0.1, 2, 192)
    hessian = inputs.T @ inputs / 1024
    hessian.diagonal().add_(0.01 * hessian.diagonal().mean())
    return weights, hessian


def loss(weights: torch.Tensor, hessian: torch.Tensor, found: Rounded) -> float:
    error = weights - found.values
    return float(((error @ hessian) * error).sum())


def plainly(weights: torch.Tensor, hessian: torch.Tensor) -> Rounded:
    scales = fit_scales(weights, hessian.diagonal(), GROUP)
    return Rounded(nearest(weights, spread(scales, GROUP)), scales, GROUP)


def test_feedback_halves_the_error_of_the_outputs(
    problem: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """Against rounding to nearest with the same scales; refining makes it better still."""
    nearest_loss = loss(*problem, plainly(*problem))
    once = loss(*problem, rounded(*problem, GROUP, turns=0))
    refined = loss(*problem, rounded(*problem, GROUP))
    assert once < 0.5 * nearest_loss
    assert refined < 0.98 * once


def test_no_step_of_refining_makes_it_worse(problem: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Neither new scales nor new integers."""
    found = rounded(*problem, GROUP, turns=0)
    last = loss(*problem, found)
    for _ in range(4):
        for step in (feedback._refit, feedback._descend):
            found = step(*problem, found)
            now = loss(*problem, found)
            assert now <= last * (1 + 1e-5)
            last = now


def test_integers_and_scales_are_what_four_bits_and_bf16_hold(
    problem: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """Between -8 and 7, whole; scales survive the cast that engines do."""
    found = rounded(*problem, GROUP)
    assert found.integers.min() >= -8
    assert found.integers.max() <= 7
    assert torch.equal(found.integers, found.integers.round())
    assert torch.equal(found.scales, to_bf16(found.scales))
    assert (found.scales != 0).all()


def test_a_group_of_zeros_stays_zero(problem: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Nothing is divided by its scale."""
    weights, hessian = problem
    weights[:, 64:128] = 0
    found = plainly(weights, hessian)
    assert torch.equal(found.values[:, 64:128], weights[:, 64:128])
    assert torch.isfinite(rounded(weights, hessian, GROUP).values).all()


def test_both_ends_of_the_grid_are_used() -> None:
    """The largest weight of a group lies at -8 whatever its sign: the scale takes the sign."""
    weights = torch.linspace(-0.7, 1.6, 64)[None]
    scales = fit_scales(weights, torch.ones(64), GROUP, reaches=(1.0,))
    assert float(scales) == pytest.approx(-0.2, rel=1e-2)
    assert nearest(weights, scales).min() == -8


def test_packing_is_undone_by_unpacking() -> None:
    """Every integer in either nibble, and two rows a byte."""
    integers = torch.arange(-8, 8).repeat(6, 4)[:, :64].float()
    integers[1] = integers[1].flip(0)
    packed = pack(integers)
    assert packed.shape == (3, 64)
    assert packed.dtype == torch.uint8
    assert torch.equal(unpack(packed), integers)


def test_our_engine_reads_the_numbers_that_were_packed(
    problem: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """The reader of `engines.embedded`, on our bytes."""
    from engines.embedded.int4 import Int4

    found = rounded(*problem, GROUP, turns=0)
    read = Int4(pack(found.integers).numpy(), found.scales.numpy(), None).float32()
    assert torch.equal(torch.from_numpy(read), found.values)
