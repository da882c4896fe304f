"""Losses: closed forms, gradients, Theorem 2 as a property, limits, and the batch form against other code."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from losses_cases import VIEWS, distances, embeddings, margins, taus, theorem2_losses
from scipy.special import expit, logsumexp, softmax
from torch import Tensor
from torch.nn import functional as F

from sslbook.losses import pairs as losses
from sslbook.losses.pairs import (
    contrastive,
    exact,
    info_nce,
    joint_pair_weight,
    pair_distances,
    pair_weight,
    partials,
    quadratic,
    simple,
    soft_triplet,
)

EPS = torch.finfo(torch.float64).eps


def closed_forms() -> dict[str, tuple[losses.Callable[..., Tensor], losses.Callable[..., np.ndarray]]]:
    """Our loss, and the formula as printed, in NumPy (safe only for moderate distances)."""
    tau, margin, beta = 0.3, 0.2, -0.4

    def printed_nce(p: np.ndarray, n: np.ndarray) -> np.ndarray:
        positive = np.exp(-p / tau)
        return -np.log(positive / (positive + np.exp(-n / tau).sum(-1)))

    def printed_nce_half(p: np.ndarray, n: np.ndarray) -> np.ndarray:
        positive = np.exp(-p / tau)
        return -np.log(positive / (0.5 * positive + np.exp(-n / tau).sum(-1)))

    return {
        "simple": (simple, lambda p, n: p - n.mean(-1)),
        "simple-beta": (functools.partial(simple, beta=beta), lambda p, n: 0.6 * p - n.mean(-1)),
        "soft_triplet": (
            functools.partial(soft_triplet, temperature=tau, margin=margin),
            lambda p, n: tau * np.log(1 + np.exp((p[..., None] - n + margin) / tau)).mean(-1),
        ),
        "info_nce": (functools.partial(info_nce, temperature=tau), printed_nce),
        "info_nce-epsilon": (functools.partial(info_nce, temperature=tau, epsilon=0.5), printed_nce_half),
        "info_nce-decoupled": (
            functools.partial(info_nce, temperature=tau, epsilon=0.0),
            lambda p, n: p / tau + logsumexp(-n / tau, axis=-1),
        ),
        "exact": (
            lambda p, n: exact(p, n, 2 * n.detach(), temperature=tau),
            lambda p, n: (expit(-2 * n / tau) / tau * (p[..., None] - n)).sum(-1),
        ),
        "exact-triplet": (
            lambda p, n: exact(p, n, 2 * n.detach(), temperature=tau, margin=margin, weight="soft_triplet"),
            lambda p, n: (expit((margin - 2 * n) / tau) * (p[..., None] - n)).sum(-1),
        ),
        "quadratic": (quadratic, lambda p, n: p - n.sum(-1) / (n.shape[-1] + 1)),
    }


@pytest.mark.parametrize("name", closed_forms())
@pytest.mark.parametrize("h", [1, 5])
@pytest.mark.parametrize("leading", [(), (4,), (2, 3)])
def test_value_is_the_printed_formula(name, h, leading):
    ours, printed = closed_forms()[name]
    r_pos, r_neg = distances(*leading, h=h)
    value = ours(r_pos, r_neg)
    assert value.shape == leading
    np.testing.assert_allclose(value.numpy(), printed(r_pos.numpy(), r_neg.numpy()), rtol=1e-13, atol=1e-15)
    single = ours(r_pos.float(), r_neg.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("h", [1, 6])
def test_partials_of_info_nce_are_equations_43_and_44(h):
    tau = 0.2
    r_pos, r_neg = distances(5, h=h)
    share = softmax(-np.concatenate([r_pos.numpy()[:, None], r_neg.numpy()], -1) / tau, axis=-1)
    got = partials(functools.partial(info_nce, temperature=tau), r_pos, r_neg)
    np.testing.assert_allclose(got.pos.numpy(), (1 - share[:, 0]) / tau, rtol=1e-13)
    np.testing.assert_allclose(got.neg.numpy(), -share[:, 1:] / tau, rtol=1e-13)


def test_partials_of_what_is_linear_or_not_there():
    r_pos, r_neg = distances(3, h=2)
    got = partials(simple, r_pos, r_neg)
    assert got.pos.tolist() == [1.0] * 3
    assert got.neg.tolist() == [[-0.5, -0.5]] * 3
    assert partials(lambda p, n: 2 * p, r_pos, r_neg).neg.tolist() == [[0.0, 0.0]] * 3


def sum_rule_gap(loss_fn, r_pos: Tensor, r_neg: Tensor, beta: float = 0.0) -> float:
    """How far the partials' sum is from ``beta``, relative to their size (0 where all of them vanish)."""
    pos, neg = partials(loss_fn, r_pos, r_neg)
    size = pos.abs() + neg.abs().sum(-1) + abs(beta)
    gap = (pos + neg.sum(-1) - beta).abs() / torch.where(size > 0, size, 1.0)
    return float(gap.max())


@st.composite
def anchors(draw, largest: float = 1e4):
    """One to three anchors with one to eight negatives, at any distances up to ``largest``."""
    count, h = draw(st.integers(1, 3)), draw(st.integers(1, 8))
    numbers = st.floats(0, largest, allow_subnormal=False)
    flat = draw(st.lists(numbers, min_size=count * (h + 1), max_size=count * (h + 1)))
    r = torch.tensor(flat, dtype=torch.float64).reshape(count, h + 1)
    return r[:, 0], r[:, 1:]


@settings(deadline=None)
@given(anchors(), taus, margins, st.floats(0, 4), st.floats(-5, 5))
def test_partials_have_the_right_sum_and_signs(pairs, tau, margin, epsilon, beta):
    """A sum of zero also for every epsilon; of beta in the extended loss."""
    r_pos, r_neg = pairs
    losses = theorem2_losses(tau, margin)
    for loss_fn in losses.values():
        assert torch.isfinite(loss_fn(r_pos, r_neg)).all()
        pos, neg = partials(loss_fn, r_pos, r_neg)
        # Up to 1e7 temperatures apart: a partial may underflow to zero, but not change sign.
        assert (pos >= 0).all()
        assert (neg <= 0).all()
    losses["epsilon"] = functools.partial(info_nce, temperature=tau, epsilon=epsilon)
    for weight, shift in (("simple", 0.0), ("soft_triplet", margin), ("info_nce", 0.0)):
        losses[weight + ", exact"] = functools.partial(
            exact, r_clean=0.5 * r_neg, temperature=tau, margin=shift, weight=weight
        )
    assert max(sum_rule_gap(loss_fn, r_pos, r_neg) for loss_fn in losses.values()) <= 16 * EPS
    assert sum_rule_gap(functools.partial(simple, beta=beta), r_pos, r_neg, beta=beta) <= 16 * EPS


@pytest.mark.parametrize("tau", [1e-1, 1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_soft_triplet_tends_to_the_hinge(tau, margin):
    r_pos, r_neg = distances(50, h=3)
    hinge = (r_pos[:, None] - r_neg + margin).clamp(min=0).mean(-1)
    excess = soft_triplet(r_pos, r_neg, temperature=tau, margin=margin) - hinge
    assert (excess >= -1e-15).all()
    assert (excess <= tau * math.log(2) + 1e-15).all()
    at_the_kink = soft_triplet(r_pos, (r_pos + margin)[:, None], temperature=tau, margin=margin)
    torch.testing.assert_close(at_the_kink, torch.full_like(r_pos, tau * math.log(2)), rtol=1e-3, atol=1e-16)


@pytest.mark.parametrize("gap", [-40.0, -21.0, 0.0, 19.0, 21.0, 35.0])
def test_full_precision_on_both_sides_of_zero(gap):
    # softplus(21) of torch drops exp(-21): a relative 4e-11, which this refuses.
    expected = max(gap, 0.0) + math.log1p(math.exp(-abs(gap)))
    r_pos = torch.tensor(50.0 + gap, dtype=torch.float64)
    r_neg = torch.tensor([50.0], dtype=torch.float64)
    for loss_fn in (info_nce, soft_triplet):
        assert loss_fn(r_pos, r_neg, temperature=1.0).item() == pytest.approx(expected, rel=1e-14)
    if gap == 21:
        assert F.softplus(r_pos - r_neg).item() != pytest.approx(expected, rel=1e-14)


@settings(deadline=None)
@given(st.floats(0, 1e4), taus, margins)
def test_pair_weight_is_the_slope_at_the_clean_pair(r, tau, margin):
    r_pos, r_neg = torch.zeros(1, dtype=torch.float64), torch.tensor([[r]], dtype=torch.float64)
    for name, loss_fn in theorem2_losses(tau, margin).items():
        slope = -partials(loss_fn, r_pos, r_neg).neg
        asked = {
            "simple": {},
            "soft_triplet": {"temperature": tau, "margin": margin},
            "info_nce": {"temperature": tau},
        }[name]
        torch.testing.assert_close(pair_weight(r_neg, name, **asked), slope, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("h", [1, 2, 9])
def test_joint_pair_weight_is_the_slope_of_info_nce(h):
    tau = 0.25
    _, r = distances(4, h=h)
    slope = -partials(functools.partial(info_nce, temperature=tau), torch.zeros(4, dtype=r.dtype), r).neg
    torch.testing.assert_close(joint_pair_weight(r, tau), slope)


def test_exact_stops_the_gradient_of_its_weights():
    r_pos, r_neg = distances(3, h=2)
    r_clean = r_neg.clone().requires_grad_()
    assert not exact(r_pos, r_neg, r_clean, temperature=0.5).requires_grad


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
def test_pair_distances_of_each_replica_are_the_definition(negatives, normalize, n):
    z1, z2 = embeddings(2, 3, n, 4)
    got = pair_distances(z1, z2, normalize=normalize, negatives=negatives)
    assert got.pos.shape == (2, 3, 2 * n if negatives == "both_views" else n)
    a, b = ((z / z.norm(dim=-1, keepdim=True) if normalize else z).numpy() for z in (z1, z2))
    for place in np.ndindex(2, 3):
        pos, neg = loop_distances(a[place], b[place], negatives)
        np.testing.assert_allclose(got.pos[place], pos, rtol=1e-13)
        np.testing.assert_allclose(got.neg[place], neg, rtol=1e-12)


def test_a_common_offset_costs_no_digits():
    z1, z2 = (z.float() for z in embeddings(6, 3))
    a, b = z1 + 1000, z2 + 1000
    _, expected = loop_distances(a.double().numpy(), b.double().numpy(), "other_view")
    centred = pair_distances(a, b, negatives="other_view").neg
    np.testing.assert_allclose(centred, expected, rtol=1e-5)
    gram = 0.5 * a.square().sum(-1)[:, None] + 0.5 * b.square().sum(-1) - a @ b.T  # without centring
    off = gram[~torch.eye(6, dtype=torch.bool)].reshape(6, 5)
    assert np.abs(off.numpy() - expected).max() > 1e-2


def nt_xent(z1: Tensor, z2: Tensor, tau: float) -> Tensor:
    """SimCLR's loss as most code bases write it: a cross-entropy over cosines."""
    z = F.normalize(torch.cat([z1, z2]), dim=-1)
    logits = (z @ z.T / tau).masked_fill(torch.eye(len(z), dtype=torch.bool), -math.inf)
    return F.cross_entropy(logits, torch.arange(len(z)).roll(len(z1)))


@pytest.mark.parametrize("tau", [0.05, 0.5])
@pytest.mark.parametrize("n", [2, 16])
def test_the_default_is_nt_xent(tau, n):
    z1, z2 = (z.requires_grad_() for z in embeddings(n, 8))
    ours, theirs = contrastive(z1, z2, temperature=tau), nt_xent(z1, z2, tau)
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)
    for a, b in zip(torch.autograd.grad(ours, (z1, z2)), torch.autograd.grad(theirs, (z1, z2)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)
    assert contrastive(z1, z2, temperature=tau, normalize=False).item() != pytest.approx(theirs.item(), rel=0.1)
    assert contrastive(z1, z2, temperature=2 * tau).item() != pytest.approx(
        theirs.item(), rel=0.1
    )  # ||a - b||^2, not half of it


@pytest.mark.parametrize("negatives", VIEWS)
def test_exact_takes_its_weights_from_the_clean_pairs(negatives):
    tau = 0.4
    z1, z2 = embeddings(5, 3)
    clean, _ = embeddings(5, 3, seed=1)
    ours = contrastive(z1, z2, "exact", normalize=False, negatives=negatives, clean=clean, temperature=tau)
    pos, neg = loop_distances(z1.numpy(), z2.numpy(), negatives)
    _, r = loop_distances(clean.numpy(), clean.numpy(), negatives)
    expected = (expit(-r / tau) / tau * (pos[:, None] - neg)).sum(-1).mean()
    assert ours.item() == pytest.approx(expected, rel=1e-12)


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


def direct(a: Tensor, b: Tensor, a2: Tensor, b2: Tensor, alpha: Tensor) -> Tensor:
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
    assert torch.allclose(losses.contrastive_covariance(a, a2, alpha, b, b2), direct(a, b, a2, b2, alpha), atol=1e-13)
    twice = [torch.stack([part, 2 * part]) for part in (a, a2, b, b2)]
    stacked = losses.contrastive_covariance(*twice[:2], alpha, *twice[2:])
    assert torch.allclose(stacked[1], 4 * stacked[0])


def two_views(seed: int = 0) -> Tensor:
    return torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_energy_is_half_the_trace() -> None:
    f, f2 = two_views()
    alpha = torch.rand(6, 6, dtype=torch.float64)
    trace = losses.contrastive_covariance(f, f2, alpha).trace()
    assert float(losses.energy(f, f2, alpha)) == pytest.approx(0.5 * float(trace), rel=1e-12)
    assert torch.allclose(losses.energy(torch.stack([f, 2 * f]), torch.stack([f2, 2 * f2]), alpha)[1], 2 * trace)


@pytest.mark.parametrize("loss", losses.ENERGIES)
@pytest.mark.parametrize("epsilon", [0.0, 0.7])
def test_the_weights_are_minus_the_slopes_of_the_loss_in_the_distances(loss: str, epsilon: float) -> None:
    """``-dL = sum_ij alpha_ij d(d_ij^2 - d_i^2)``, by central differences of the outputs along a random direction."""
    f, step = two_views(1), 1e-6 * two_views(2)
    setting = {"temperature": 0.7, "epsilon": epsilon, "margin": 0.4}
    alpha = losses.weights(loss, f[0], f[1], **setting)
    slope = losses.loss_value(loss, *(f + step), **setting) - losses.loss_value(loss, *(f - step), **setting)
    moved = 2 * 6**2 * (losses.energy(*(f + step), alpha) - losses.energy(*(f - step), alpha))
    assert float(moved) == pytest.approx(-float(slope), rel=1e-6)


def test_weights_are_derivatives_and_have_no_gradient() -> None:
    f = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    alpha = losses.weights("info_nce", f, f + 0.1, temperature=0.3)
    assert not alpha.requires_grad
    assert torch.allclose(alpha.sum(-1), torch.ones(5, dtype=torch.float64))
    assert bool((alpha.diagonal() == 0).all())
    far = losses.weights("info_nce", 1e3 * f, 1e3 * f + 0.1, temperature=1e-3)
    assert bool(far.isfinite().all())


def test_a_projected_vector_is_orthogonal() -> None:
    w, v = F.normalize(two_views()[0], dim=-1), two_views()[1]
    out = losses.project(w, v)
    assert float((out * w).sum(-1).abs().max()) < 1e-13
    assert torch.allclose(losses.project(w, out), out)


def test_energies_of_bad_input_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'info_nce'"):
        losses.weights("infonce", *two_views())


def test_a_hinge_at_its_kink_is_off() -> None:
    assert not losses.weights("hinge_triplet", torch.ones(3, 2), torch.ones(3, 2)).any()
