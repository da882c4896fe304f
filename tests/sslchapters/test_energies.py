"""Losses as energies (Section 2 of [tian2023]): the covariance by its definition, weights as slopes of the loss."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sslchapters import energies


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("loss", energies.ENERGIES)
@pytest.mark.parametrize("epsilon", [0.0, 0.7])
def test_the_weights_are_minus_the_slopes_of_the_loss_in_the_distances(loss: str, epsilon: float) -> None:
    """``-dL = sum_ij alpha_ij d(d_ij^2 - d_i^2)``, by central differences of the outputs along a random direction."""
    f, step = drawn(2, 6, 3, seed=1), 1e-6 * drawn(2, 6, 3, seed=2)
    setting = {"temperature": 0.7, "epsilon": epsilon, "margin": 0.4}
    alpha = energies.weights(loss, f[0], f[1], **setting)
    slope = energies.loss_value(loss, *(f + step), **setting) - energies.loss_value(loss, *(f - step), **setting)
    moved = 2 * 6**2 * (energies.energy(*(f + step), alpha) - energies.energy(*(f - step), alpha))
    assert float(moved) == pytest.approx(-float(slope), rel=1e-6)


def test_weights_have_no_gradient_and_stay_finite() -> None:
    f = drawn(5, 2).requires_grad_()
    alpha = energies.weights("info_nce", f, f + 0.1, temperature=0.3)
    assert not alpha.requires_grad
    assert torch.allclose(alpha.sum(-1), torch.ones(5, dtype=torch.float64))
    assert alpha.diagonal().eq(0).all()
    assert energies.weights("info_nce", 1e3 * f, 1e3 * f + 0.1, temperature=1e-3).isfinite().all()
    assert not energies.weights("hinge_triplet", torch.ones(3, 2), torch.ones(3, 2)).any(), "a hinge at its kink is off"
