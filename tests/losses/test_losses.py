"""Losses: closed forms, gradients, Theorem 2 as a property, limits, and the batch form against other code."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from losses_cases import distances, embeddings, forward_mode, margins, taus, theorem2_losses
from scipy.special import expit, logsumexp, softmax
from torch import Tensor
from torch.nn import functional as F

from sslbook.losses import pairs as losses
from sslbook.losses.pairs import (
    contrastive,
    exact,
    half_squared_distance,
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

# ------------------------------------------------------------------------------ closed forms


def test_half_squared_distance():
    a = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    b = torch.tensor([[4.0, 6.0], [0.0, 0.0]])
    assert half_squared_distance(a, b).tolist() == [12.5, 0.0]
    assert half_squared_distance(a[:, None], b).shape == (2, 2)


def test_half_squared_distance_of_unit_vectors_is_one_minus_cosine():
    z1, z2 = (F.normalize(z, dim=-1) for z in embeddings(7, 3))
    torch.testing.assert_close(half_squared_distance(z1, z2), 1 - F.cosine_similarity(z1, z2))


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
            functools.partial(soft_triplet, tau=tau, margin=margin),
            lambda p, n: tau * np.log(1 + np.exp((p[..., None] - n + margin) / tau)).mean(-1),
        ),
        "info_nce": (functools.partial(info_nce, tau=tau), printed_nce),
        "info_nce-epsilon": (functools.partial(info_nce, tau=tau, epsilon=0.5), printed_nce_half),
        "info_nce-decoupled": (
            functools.partial(info_nce, tau=tau, epsilon=0.0),
            lambda p, n: p / tau + logsumexp(-n / tau, axis=-1),
        ),
        "exact": (
            lambda p, n: exact(p, n, 2 * n.detach(), tau=tau),
            lambda p, n: (expit(-2 * n / tau) / tau * (p[..., None] - n)).sum(-1),
        ),
        "exact-triplet": (
            lambda p, n: exact(p, n, 2 * n.detach(), tau=tau, margin=margin, weight="soft_triplet"),
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


@forward_mode
@pytest.mark.parametrize("name", closed_forms())
@pytest.mark.parametrize("h", [1, 4])
def test_gradients(name, h):
    ours, _ = closed_forms()[name]
    inputs = tuple(t.requires_grad_() for t in distances(3, h=h))
    frozen = inputs[1].detach().clone()  # finite differences must not move the stop-gradient weights
    if name.startswith("exact"):
        given = {} if name == "exact" else {"weight": "soft_triplet", "margin": 0.2}

        def ours(p: Tensor, n: Tensor) -> Tensor:
            return exact(p, n, frozen, tau=0.3, **given)

    assert torch.autograd.gradcheck(ours, inputs, check_forward_ad=True, atol=1e-8)
    if name.startswith(("simple", "exact", "quadratic")):  # linear: there is no second derivative to check
        return
    assert torch.autograd.gradgradcheck(ours, inputs, atol=1e-8)


@pytest.mark.parametrize("h", [1, 6])
def test_partials_of_info_nce_are_equations_43_and_44(h):
    tau = 0.2
    r_pos, r_neg = distances(5, h=h)
    share = softmax(-np.concatenate([r_pos.numpy()[:, None], r_neg.numpy()], -1) / tau, axis=-1)
    got = partials(functools.partial(info_nce, tau=tau), r_pos, r_neg)
    np.testing.assert_allclose(got.pos.numpy(), (1 - share[:, 0]) / tau, rtol=1e-13)
    np.testing.assert_allclose(got.neg.numpy(), -share[:, 1:] / tau, rtol=1e-13)


def test_partials_leave_the_inputs_alone_and_work_without_grad():
    r_pos, r_neg = distances(3, h=2)
    with torch.no_grad():
        got = partials(simple, r_pos, r_neg)
    assert not r_pos.requires_grad
    assert not r_neg.requires_grad
    assert got.pos.tolist() == [1.0] * 3
    assert got.neg.tolist() == [[-0.5, -0.5]] * 3


def test_partials_of_a_loss_that_ignores_the_negatives():
    r_pos, r_neg = distances(3, h=2)
    assert partials(lambda p, n: 2 * p, r_pos, r_neg).neg.tolist() == [[0.0, 0.0]] * 3


# ------------------------------------------------------------------ Theorem 2, as a property


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
@given(anchors(), taus, margins)
def test_partials_sum_to_zero_and_have_the_right_signs(pairs, tau, margin):
    r_pos, r_neg = pairs
    for loss_fn in theorem2_losses(tau, margin).values():
        assert torch.isfinite(loss_fn(r_pos, r_neg)).all()
        pos, neg = partials(loss_fn, r_pos, r_neg)
        # Up to 1e7 temperatures apart: a partial may underflow to zero, but not change sign.
        assert (pos >= 0).all()
        assert (neg <= 0).all()
        assert sum_rule_gap(loss_fn, r_pos, r_neg) <= 16 * EPS


@settings(deadline=None)
@given(anchors(largest=300), st.floats(0, 300))
def test_signs_are_strict_where_nothing_underflows(pairs, margin):
    for loss_fn in theorem2_losses(1.0, margin).values():
        pos, neg = partials(loss_fn, *pairs)
        assert (pos > 0).all()
        assert (neg < 0).all()


@settings(deadline=None)
@given(anchors(), st.floats(-5, 5))
def test_partials_of_the_extended_loss_sum_to_beta(pairs, beta):
    loss_fn = functools.partial(simple, beta=beta)
    assert sum_rule_gap(loss_fn, *pairs, beta=beta) <= 16 * EPS


@settings(deadline=None)
@given(anchors(), taus, st.floats(0, 4))
def test_info_nce_keeps_the_sum_rule_for_every_epsilon(pairs, tau, epsilon):
    # epsilon = 0 drops the positive pair from the denominator: the loss still sees differences alone.
    assert sum_rule_gap(functools.partial(info_nce, tau=tau, epsilon=epsilon), *pairs) <= 16 * EPS


@settings(deadline=None)
@given(anchors(), anchors(), taus, margins)
def test_exact_keeps_the_sum_rule(pairs, clean, tau, margin):
    r_pos, r_neg = pairs
    r_clean = clean[1].flatten()[0] * torch.ones_like(r_neg) + r_neg
    for weight in ("simple", "soft_triplet", "info_nce"):
        shift = margin if weight == "soft_triplet" else 0.0
        loss_fn = functools.partial(exact, r_clean=r_clean, tau=tau, margin=shift, weight=weight)
        assert sum_rule_gap(loss_fn, r_pos, r_neg) <= 16 * EPS


@pytest.mark.parametrize("h", [1, 2, 7])
def test_quadratic_is_a_scaled_extended_simple_loss(h):
    r_pos, r_neg = distances(5, h=h)
    torch.testing.assert_close(quadratic(r_pos, r_neg), h / (h + 1) * simple(r_pos, r_neg, beta=1 / h))
    pos, neg = partials(quadratic, r_pos, r_neg)
    torch.testing.assert_close(pos + neg.sum(-1), torch.full_like(pos, 1 / (h + 1)))


# ---------------------------------------------------------------------------- limits, stability


@pytest.mark.parametrize("tau", [1e-1, 1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_soft_triplet_tends_to_the_hinge(tau, margin):
    r_pos, r_neg = distances(50, h=3)
    hinge = (r_pos[:, None] - r_neg + margin).clamp(min=0).mean(-1)
    excess = soft_triplet(r_pos, r_neg, tau=tau, margin=margin) - hinge
    assert (excess >= -1e-15).all()
    assert (excess <= tau * math.log(2) + 1e-15).all()
    at_the_kink = soft_triplet(r_pos, (r_pos + margin)[:, None], tau=tau, margin=margin)
    torch.testing.assert_close(at_the_kink, torch.full_like(r_pos, tau * math.log(2)), rtol=1e-3, atol=1e-16)


@pytest.mark.parametrize("tau", [1e-1, 1e-3, 1e-6])
def test_info_nce_tends_to_the_hinge_of_the_hardest_negative(tau):
    r_pos, r_neg = distances(50, h=3)
    excess = tau * info_nce(r_pos, r_neg, tau=tau) - (r_pos - r_neg.amin(-1)).clamp(min=0)
    assert (excess >= -1e-15).all()
    assert (excess <= tau * math.log(4) + 1e-15).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sign", [-1, 1])
def test_stable_at_ten_thousand_temperatures(dtype, sign):
    tau = 1e-2
    r_pos = torch.full((1,), 100.0 if sign > 0 else 0.0, dtype=dtype)
    r_neg = torch.full((1, 2), 100.0 if sign < 0 else 0.0, dtype=dtype)
    nce, triplet = functools.partial(info_nce, tau=tau), functools.partial(soft_triplet, tau=tau)
    expected = 1e4 + math.log(2) if sign > 0 else 0.0
    tolerance = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 0.0}
    torch.testing.assert_close(nce(r_pos, r_neg), torch.tensor([expected], dtype=dtype), **tolerance)
    torch.testing.assert_close(triplet(r_pos, r_neg), torch.tensor([100.0 * (sign > 0)], dtype=dtype), **tolerance)
    slope = partials(nce, r_pos, r_neg)
    torch.testing.assert_close(slope.pos, torch.tensor([100.0 * (sign > 0)], dtype=dtype), **tolerance)
    assert torch.isfinite(slope.neg).all()


@pytest.mark.parametrize("gap", [-40.0, -21.0, 0.0, 19.0, 21.0, 35.0])
def test_full_precision_on_both_sides_of_zero(gap):
    # softplus(21) of torch drops exp(-21): a relative 4e-11, which this refuses.
    expected = max(gap, 0.0) + math.log1p(math.exp(-abs(gap)))
    r_pos = torch.tensor(50.0 + gap, dtype=torch.float64)
    r_neg = torch.tensor([50.0], dtype=torch.float64)
    for loss_fn in (info_nce, soft_triplet):
        assert loss_fn(r_pos, r_neg, tau=1.0).item() == pytest.approx(expected, rel=1e-14)
    if gap == 21:
        assert F.softplus(r_pos - r_neg).item() != pytest.approx(expected, rel=1e-14)


# ------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p, n: info_nce(p, n, tau=0), ValueError, r"tau must be above 0, got 0"),
        (lambda p, n: info_nce(p, n, tau="1"), TypeError, r"tau must be a number, got '1'"),
        (lambda p, n: info_nce(p, n, tau=1, epsilon=-1), ValueError, r"epsilon must be at least 0, got -1"),
        (lambda p, n: soft_triplet(p, n, tau=1, margin=-0.1), ValueError, r"margin must be at least 0, got -0.1"),
        (lambda p, n: simple(p, n, beta=math.inf), ValueError, r"beta must be finite, got inf"),
        (lambda p, n: quadratic(p, n[:, :0]), ValueError, r"H >= 1 negatives, got shape \(3, 0\)"),
        (lambda p, n: exact(p, n, n.expand(4, 3, 2), tau=1), ValueError, "r_clean must have the shape of r_neg"),
        (lambda p, n: pair_weight(n, "info_nec", tau=1), ValueError, r"did you mean 'info_nce'\?"),
        (lambda p, n: pair_weight(n, "info_nce"), TypeError, r"tau must be a number, got None"),
        (lambda p, n: pair_weight(n, "simple", margin=1), ValueError, "margin has no use with loss='simple', got it"),
        (lambda p, n: joint_pair_weight(n[:, :0], 1.0), ValueError, r"H >= 1, got \(3, 0\)"),
        (lambda p, n: pair_distances(n[:1], n[:1]), ValueError, r"N >= 2 samples"),
        (lambda p, n: contrastive(n, n, "exact", clean=n[:2], tau=1), ValueError, r"clean must have the shape of z1"),
        (lambda p, n: contrastive(n, n, "simple", clean=n), ValueError, r"clean is for loss='exact' alone"),
    ],
)
def test_bad_input_gets_a_sentence(call, error, message):
    r_pos, r_neg = distances(3, h=2)
    with pytest.raises(error, match=message):
        call(r_pos, r_neg)


def test_a_weight_needs_no_batch_and_its_margin_is_none() -> None:
    r_neg = distances(3, h=2)[1]
    assert torch.equal(joint_pair_weight(r_neg[0], 0.4), joint_pair_weight(r_neg, 0.4)[0])
    without = pair_weight(r_neg, "soft_triplet", tau=0.4)
    assert torch.equal(without, pair_weight(r_neg, "soft_triplet", tau=0.4, margin=0.0))
    assert not torch.equal(without, pair_weight(r_neg, "soft_triplet", tau=0.4, margin=0.1))


def test_distances_take_their_views_by_name() -> None:
    z1, z2 = embeddings(4, 3)
    named, placed = pair_distances(z1=z1, z2=z2, normalize=True), pair_distances(z1, z2, normalize=True)
    assert all(torch.equal(one, other) for one, other in zip(named, placed, strict=True))
    with pytest.raises(TypeError, match="positional"):
        pair_distances(z1, z2, True)  # type: ignore[misc]
