"""Losses as energies (Section 2 of [tian2023]): what the weights are at the ends; that they are slopes is the page's claim."""

from __future__ import annotations

import torch

from sslchapters import energies


def test_weights_have_no_gradient_and_stay_finite() -> None:
    f = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    alpha = energies.weights("info_nce", f, f + 0.1, temperature=0.3)
    assert not alpha.requires_grad
    assert torch.allclose(alpha.sum(-1), torch.ones(5, dtype=torch.float64))
    assert alpha.diagonal().eq(0).all()
    assert energies.weights("info_nce", 1e3 * f, 1e3 * f + 0.1, temperature=1e-3).isfinite().all()
    assert not energies.weights("hinge_triplet", torch.ones(3, 2), torch.ones(3, 2)).any(), "a hinge at its kink is off"
