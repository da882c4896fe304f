"""The contrastive covariance, the energy and the weights of the losses, each against its definition."""

from __future__ import annotations

import pytest
import torch

from sslbook.losses import energies


def direct(a: torch.Tensor, b: torch.Tensor, a2: torch.Tensor, b2: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(a.shape[1], b.shape[1], dtype=a.dtype)
    for i in range(len(a)):
        for j in range(len(a)):
            total += alpha[i, j] * torch.outer(a[i] - a[j], b[i] - b[j])
            total -= alpha[i, j] * torch.outer(a[i] - a2[i], b[i] - b2[i])
    return total / (2 * len(a) ** 2)


def test_the_contrastive_covariance_is_its_definition() -> None:
    draw = torch.Generator().manual_seed(0)
    a, a2 = torch.randn(2, 6, 3, generator=draw, dtype=torch.float64)
    b, b2 = torch.randn(2, 6, 2, generator=draw, dtype=torch.float64)
    alpha = torch.rand(6, 6, generator=draw, dtype=torch.float64)
    assert torch.allclose(energies.contrastive_covariance(a, a2, alpha, b, b2), direct(a, b, a2, b2, alpha), atol=1e-14)
    twice = [torch.stack([part, 2 * part]) for part in (a, a2, b, b2)]
    stacked = energies.contrastive_covariance(*twice[:2], alpha, *twice[2:])
    assert torch.allclose(stacked[1], 4 * stacked[0])


def views(seed: int = 0) -> torch.Tensor:
    return torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_energy_is_half_the_trace() -> None:
    f, f2 = views()
    alpha = torch.rand(6, 6, dtype=torch.float64)
    trace = energies.contrastive_covariance(f, f2, alpha).trace()
    assert float(energies.energy(f, f2, alpha)) == pytest.approx(0.5 * float(trace), rel=1e-12)
    assert torch.allclose(energies.energy(torch.stack([f, 2 * f]), torch.stack([f2, 2 * f2]), alpha)[1], 2 * trace)


@pytest.mark.parametrize("loss", energies.ENERGIES)
@pytest.mark.parametrize("epsilon", [0.0, 0.7])
def test_the_weights_are_minus_the_slopes_of_the_loss_in_the_distances(loss: str, epsilon: float) -> None:
    """``-dL = sum_ij alpha_ij d(d_ij^2 - d_i^2)``, by central differences of the outputs along a random direction."""
    f, step = views(1), 1e-6 * views(2)
    setting = {"temperature": 0.7, "epsilon": epsilon, "margin": 0.4}
    alpha = energies.weights(loss, f[0], f[1], **setting)
    slope = energies.loss_value(loss, *(f + step), **setting) - energies.loss_value(loss, *(f - step), **setting)
    moved = 2 * 6**2 * (energies.energy(*(f + step), alpha) - energies.energy(*(f - step), alpha))
    assert float(moved) == pytest.approx(-float(slope), rel=1e-6)


def test_weights_are_derivatives_and_have_no_gradient() -> None:
    f = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    alpha = energies.weights("info_nce", f, f + 0.1, temperature=0.3)
    assert not alpha.requires_grad
    assert torch.allclose(alpha.sum(-1), torch.ones(5, dtype=torch.float64))
    assert bool((alpha.diagonal() == 0).all())
    far = energies.weights("info_nce", 1e3 * f, 1e3 * f + 0.1, temperature=1e-3)
    assert bool(far.isfinite().all())


def test_a_projected_vector_is_orthogonal() -> None:
    w, v = torch.nn.functional.normalize(views()[0], dim=-1), views()[1]
    out = energies.project(w, v)
    assert float((out * w).sum(-1).abs().max()) < 1e-14
    assert torch.allclose(energies.project(w, out), out)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: energies.weights("infonce", torch.ones(3, 1), torch.ones(3, 1)), "did you mean 'info_nce'"),
        (lambda: energies.weights("triplet", torch.ones(3, 1), torch.ones(3, 1)), "did you mean 'hinge_triplet'|soft"),
        (lambda: energies.loss_value("pairs", torch.ones(3, 1), torch.ones(3, 1)), "loss must be one of"),
        (lambda: energies.contrastive_covariance(torch.ones(3, 2), torch.ones(3, 2), torch.ones(2, 2)), "alpha"),
        (lambda: energies.contrastive_covariance(torch.ones(3, 2), torch.ones(4, 2), torch.ones(3, 3)), "alpha"),
    ],
)
def test_bad_input_is_refused(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_a_hinge_at_its_kink_is_off() -> None:
    assert not energies.weights("hinge_triplet", torch.ones(3, 2), torch.ones(3, 2)).any()
