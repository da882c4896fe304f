"""Losses on pairs and batches: the weights of Theorem 4, pair distances, and the batch form against other code."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from losses_cases import VIEWS, distances, embeddings, forward_mode, margins, taus, theorem2_losses
from scipy.special import expit
from torch import Tensor
from torch.nn import functional as F

from sslbook.losses.pairs import (
    contrastive,
    exact,
    info_nce,
    joint_pair_weight,
    pair_distances,
    pair_weight,
    partials,
    unit,
)

# ---------------------------------------------------------------------- the weights of Theorem 4


@settings(deadline=None)
@given(st.floats(0, 1e4), taus, margins)
def test_pair_weight_is_the_slope_at_the_clean_pair(r, tau, margin):
    r_pos, r_neg = torch.zeros(1, dtype=torch.float64), torch.tensor([[r]], dtype=torch.float64)
    for name, loss_fn in theorem2_losses(tau, margin).items():
        slope = -partials(loss_fn, r_pos, r_neg).neg
        asked = {"simple": {}, "soft_triplet": {"tau": tau, "margin": margin}, "info_nce": {"tau": tau}}[name]
        torch.testing.assert_close(pair_weight(r_neg, name, **asked), slope, rtol=1e-12, atol=1e-300)


def test_pair_weight_is_equation_6():
    r, tau, margin = np.linspace(0, 3, 7), 0.4, 0.5
    tensor = torch.from_numpy(r)
    triplet = np.exp(-(r - margin) / tau) / (1 + np.exp(-(r - margin) / tau))
    nce = np.exp(-r / tau) / (1 + np.exp(-r / tau)) / tau
    np.testing.assert_allclose(pair_weight(tensor, "soft_triplet", tau=tau, margin=margin), triplet, rtol=1e-14)
    np.testing.assert_allclose(pair_weight(tensor, "info_nce", tau=tau), nce, rtol=1e-14)
    assert pair_weight(tensor, "simple").tolist() == [1.0] * 7


def test_triplet_weight_tends_to_an_indicator():
    r = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    assert pair_weight(r, "soft_triplet", tau=1e-4, margin=0.5).tolist() == pytest.approx([1.0, 0.5, 0.0], abs=1e-15)


@pytest.mark.parametrize("h", [1, 2, 9])
def test_joint_pair_weight_is_the_slope_of_info_nce(h):
    tau = 0.25
    _, r = distances(4, h=h)
    slope = -partials(functools.partial(info_nce, tau=tau), torch.zeros(4, dtype=r.dtype), r).neg
    torch.testing.assert_close(joint_pair_weight(r, tau), slope)
    alone = pair_weight(r, "info_nce", tau=tau)
    if h == 1:
        torch.testing.assert_close(joint_pair_weight(r, tau), alone)
    else:  # the other negatives share the denominator
        assert (joint_pair_weight(r, tau) < alone).all()


def test_exact_has_the_slopes_of_info_nce_without_augmentation():
    tau = 0.3
    _, r = distances(4, h=1)
    zero = torch.zeros(4, dtype=r.dtype)
    ours = partials(lambda p, n: exact(p, n, r, tau=tau), zero, r)
    theirs = partials(functools.partial(info_nce, tau=tau), zero, r)
    torch.testing.assert_close(ours.pos, theirs.pos)
    torch.testing.assert_close(ours.neg, theirs.neg)


def test_exact_stops_the_gradient_of_its_weights():
    r_pos, r_neg = distances(3, h=2)
    r_clean = r_neg.clone().requires_grad_()
    assert not exact(r_pos, r_neg, r_clean, tau=0.5).requires_grad


# ------------------------------------------------------------------------------- pair distances


def loop_distances(z1: np.ndarray, z2: np.ndarray, negatives: str) -> tuple[np.ndarray, np.ndarray]:
    """The definition, one pair at a time."""
    n = len(z1)

    def r(a: np.ndarray, b: np.ndarray) -> float:
        return 0.5 * float(((a - b) ** 2).sum())

    towers = [(z1, z2), (z2, z1)] if negatives == "both_views" else [(z1, z2)]
    pos, neg = [], []
    for mine, partner in towers:
        for i in range(n):
            pos.append(r(mine[i], partner[i]))
            pools = {"both_views": [z1, z2], "other_view": [z2], "same_view": [z1]}[negatives]
            neg.append([r(mine[i], pool[j]) for pool in pools for j in range(n) if j != i])
    return np.array(pos), np.array(neg)


@pytest.mark.parametrize("negatives", VIEWS)
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("n", [2, 5])
def test_pair_distances_are_the_definition(negatives, normalize, n):
    z1, z2 = embeddings(n, 3)
    got = pair_distances(z1, z2, normalize=normalize, negatives=negatives)
    a, b = ((z / z.norm(dim=-1, keepdim=True) if normalize else z).numpy() for z in (z1, z2))
    pos, neg = loop_distances(a, b, negatives)
    assert got.pos.shape == (2 * n if negatives == "both_views" else n,)
    assert got.neg.shape == ((2 * n, 2 * n - 2) if negatives == "both_views" else (n, n - 1))
    np.testing.assert_allclose(got.pos, pos, rtol=1e-13)
    np.testing.assert_allclose(got.neg, neg, rtol=1e-12)


@pytest.mark.parametrize("negatives", VIEWS)
def test_replicas_equal_the_same_batch_alone(negatives):
    z1, z2 = embeddings(2, 3, 4, 5)
    together = pair_distances(z1, z2, negatives=negatives)
    for i in range(2):
        for j in range(3):
            alone = pair_distances(z1[i, j], z2[i, j], negatives=negatives)
            torch.testing.assert_close(together.pos[i, j], alone.pos)
            torch.testing.assert_close(together.neg[i, j], alone.neg)


@forward_mode
@pytest.mark.parametrize("negatives", VIEWS)
def test_gradients_of_pair_distances(negatives):
    inputs = tuple(z.requires_grad_() for z in embeddings(3, 2))

    def both(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(pair_distances(a, b, normalize=True, negatives=negatives))

    assert torch.autograd.gradcheck(both, inputs, check_forward_ad=True)


def test_a_common_offset_costs_no_digits():
    z1, z2 = (z.float() for z in embeddings(6, 3))
    a, b = z1 + 1000, z2 + 1000
    _, expected = loop_distances(a.double().numpy(), b.double().numpy(), "other_view")
    centred = pair_distances(a, b, negatives="other_view").neg
    np.testing.assert_allclose(centred, expected, rtol=1e-5)
    gram = 0.5 * a.square().sum(-1)[:, None] + 0.5 * b.square().sum(-1) - a @ b.T  # without centring
    off = gram[~torch.eye(6, dtype=torch.bool)].reshape(6, 5)
    assert np.abs(off.numpy() - expected).max() > 1e-2


# --------------------------------------------------------------------------------- batch losses


def nt_xent(z1: Tensor, z2: Tensor, tau: float) -> Tensor:
    """SimCLR's loss as most code bases write it: a cross-entropy over cosines."""
    z = F.normalize(torch.cat([z1, z2]), dim=-1)
    logits = (z @ z.T / tau).masked_fill(torch.eye(len(z), dtype=torch.bool), -math.inf)
    return F.cross_entropy(logits, torch.arange(len(z)).roll(len(z1)))


@pytest.mark.parametrize("tau", [0.05, 0.5])
@pytest.mark.parametrize("n", [2, 16])
def test_the_default_is_nt_xent(tau, n):
    z1, z2 = (z.requires_grad_() for z in embeddings(n, 8))
    ours, theirs = contrastive(z1, z2, tau=tau), nt_xent(z1, z2, tau)
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)
    for a, b in zip(torch.autograd.grad(ours, (z1, z2)), torch.autograd.grad(theirs, (z1, z2)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)
    assert contrastive(z1, z2, tau=tau, normalize=False).item() != pytest.approx(theirs.item(), rel=0.1)
    assert contrastive(z1, z2, tau=2 * tau).item() != pytest.approx(
        theirs.item(), rel=0.1
    )  # ||a - b||^2, not half of it


@pytest.mark.parametrize("normalize", [False, True])
def test_quadratic_is_minus_the_trace_of_the_contrastive_covariance(normalize):
    z1, z2 = embeddings(6, 3)
    ours = contrastive(z1, z2, "quadratic", normalize=normalize, negatives="same_view").item()
    f, g = ((F.normalize(z, dim=-1) if normalize else z).numpy() for z in (z1, z2))
    n = len(f)
    covariance = np.zeros((3, 3))
    for i in range(n):
        for j in range(n):
            covariance += np.outer(f[i] - f[j], f[i] - f[j]) - np.outer(f[i] - g[i], f[i] - g[i])
    assert ours == pytest.approx(-np.trace(covariance) / (2 * n**2), rel=1e-12)
    if normalize:  # in dot products, with the positives on the diagonal
        dots = f @ f.T
        np.fill_diagonal(dots, (f * g).sum(-1))
        in_dots = -(1 + 1 / n) * np.diag(dots).mean() + dots.mean()
        assert ours == pytest.approx(in_dots + 1 / n, rel=1e-12)


@pytest.mark.parametrize("negatives", VIEWS)
def test_exact_takes_its_weights_from_the_clean_pairs(negatives):
    tau = 0.4
    z1, z2 = embeddings(5, 3)
    clean, _ = embeddings(5, 3, seed=1)
    ours = contrastive(z1, z2, "exact", normalize=False, negatives=negatives, clean=clean, tau=tau)
    pos, neg = loop_distances(z1.numpy(), z2.numpy(), negatives)
    _, r = loop_distances(clean.numpy(), clean.numpy(), negatives)
    expected = (expit(-r / tau) / tau * (pos[:, None] - neg)).sum(-1).mean()
    assert ours.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("loss", "params"),
    [
        ("simple", {"beta": 0.2}),
        ("soft_triplet", {"tau": 0.5, "margin": 0.1}),
        ("info_nce", {"tau": 0.5}),
        ("quadratic", {}),
        ("exact", {"tau": 0.5, "weight": "soft_triplet", "margin": 0.1}),
    ],
)
def test_one_loss_per_replica(loss, params):
    z1, z2 = embeddings(3, 4, 5)
    extra = {"clean": z1} if loss == "exact" else {}
    together = contrastive(z1, z2, loss, **extra, **params)
    assert together.shape == (3,)
    for i in range(3):
        alone = {key: value[i] for key, value in extra.items()}
        torch.testing.assert_close(together[i], contrastive(z1[i], z2[i], loss, **alone, **params))


# ------------------------------------------------------------------ Equation 71, with its signs put right


def test_the_force_grows_with_the_positive_distance():
    """F = -dL/dr_- of InfoNCE: dF/dr_+ = F (1/tau - F) > 0 and dF/dr_- = -F (1/tau - F); the paper prints the opposite signs."""
    tau = 0.5
    r_pos = torch.rand(200, dtype=torch.float64).requires_grad_(True)
    r_neg = torch.rand(200, dtype=torch.float64).requires_grad_(True)
    loss = info_nce(r_pos, r_neg[:, None], tau)
    (slope,) = torch.autograd.grad(loss.sum(), r_neg, create_graph=True)
    force = -slope
    by_pos, by_neg = torch.autograd.grad(force.sum(), (r_pos, r_neg))
    printed = force * (1 / tau - force)
    torch.testing.assert_close(by_pos, printed)
    torch.testing.assert_close(by_neg, -printed)
    assert (printed > 0).all()
    assert (printed <= 1 / (4 * tau**2)).all()


@pytest.mark.parametrize("scale", [1e-200, 1e-13, 1e200])
def test_normalised_embeddings_have_no_least_and_no_largest_norm(scale):
    z1, z2 = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = pair_distances(z1, z2, normalize=True)
    found = pair_distances(scale * z1, scale * z2, normalize=True)
    assert (found.neg - expected.neg).abs().max() < 1e-15
    assert (found.pos - expected.pos).abs().max() < 1e-15
    assert unit(torch.zeros(2, 3)).eq(0).all()


def test_negatives_infinitely_far_push_nothing():
    r_pos, r_neg = torch.tensor([0.5, 0.5], requires_grad=True), torch.tensor([[torch.inf] * 2, [torch.inf, 1.0]])
    r_neg.requires_grad_()
    value = info_nce(r_pos, r_neg, 0.5)
    assert value[0] == 0
    assert value[1] == info_nce(r_pos, r_neg[:, 1:], 0.5)[1]
    pos, neg = torch.autograd.grad(value.sum(), (r_pos, r_neg))
    assert pos[0] == 0
    assert neg.isfinite().all()
    assert neg[:, 0].eq(0).all()
    assert info_nce(r_pos, r_neg, 0.5, 0).tolist() == [-torch.inf, info_nce(r_pos, r_neg[:, 1:], 0.5, 0)[1].item()]
