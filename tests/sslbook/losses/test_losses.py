"""Losses of pair distances: closed forms, partial derivatives, Theorem 2 as a property, limits, and batches against other code."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from losses_cases import distances, views
from scipy.special import expit, logsumexp
from torch import Tensor

from sslbook.losses.pairs import (
    contrastive,
    exact,
    info_nce,
    pair_distances,
    pair_weight,
    partials,
    quadratic,
    simple,
    soft_triplet,
)

EPS = torch.finfo(torch.float64).eps
TAU, MARGIN = 0.3, 0.2
VIEWS = ("both_views", "other_view", "same_view")
Loss = Any


def printed_nce(epsilon: float) -> Loss:
    def value(p: np.ndarray, n: np.ndarray) -> np.ndarray:
        positive = np.exp(-p / TAU)
        return -np.log(positive / (epsilon * positive + np.exp(-n / TAU).sum(-1)))

    return value


FORMULAS: dict[str, tuple[Loss, Loss]] = {
    "simple, beta": (partial(simple, beta=-0.4), lambda p, n: 0.6 * p - n.mean(-1)),
    "soft_triplet": (
        partial(soft_triplet, temperature=TAU, margin=MARGIN),
        lambda p, n: TAU * np.log(1 + np.exp((p[..., None] - n + MARGIN) / TAU)).mean(-1),
    ),
    "info_nce": (partial(info_nce, temperature=TAU), printed_nce(1)),
    "info_nce, epsilon": (partial(info_nce, temperature=TAU, epsilon=0.5), printed_nce(0.5)),
    "info_nce, decoupled": (
        partial(info_nce, temperature=TAU, epsilon=0.0),
        lambda p, n: p / TAU + logsumexp(-n / TAU, axis=-1),
    ),
    "exact": (
        lambda p, n: exact(p, n, 2 * n, TAU),
        lambda p, n: (expit(-2 * n / TAU) / TAU * (p[..., None] - n)).sum(-1),
    ),
    "exact, triplet": (
        lambda p, n: exact(p, n, 2 * n, TAU, MARGIN, weight="soft_triplet"),
        lambda p, n: (expit((MARGIN - 2 * n) / TAU) * (p[..., None] - n)).sum(-1),
    ),
    "quadratic": (quadratic, lambda p, n: p - n.sum(-1) / (n.shape[-1] + 1)),
}
"""Ours, and the formula as printed, in NumPy."""


@pytest.mark.parametrize("name", FORMULAS)
def test_a_loss_is_its_printed_formula_with_its_gradient(name: str) -> None:
    ours, printed = FORMULAS[name]
    for leading, h in (((), 1), ((4,), 5), ((2, 3), 3)):
        r_pos, r_neg = distances(*leading, h=h)
        value = ours(r_pos, r_neg)
        assert value.shape == leading
        np.testing.assert_allclose(value, printed(r_pos.numpy(), r_neg.numpy()), rtol=1e-13, atol=1e-15)
    if not name.startswith("exact"):  # whose weights have no gradient
        leaves = [r.requires_grad_() for r in distances(4, h=3)]
        assert torch.autograd.gradcheck(ours, leaves)


@st.composite
def anchors(draw: Any) -> tuple[Tensor, Tensor]:
    """One to three anchors with one to eight negatives, at any distances up to 1e4."""
    count, h = draw(st.integers(1, 3)), draw(st.integers(1, 8))
    numbers = st.floats(0, 1e4, allow_subnormal=False)
    flat = draw(st.lists(numbers, min_size=count * (h + 1), max_size=count * (h + 1)))
    r = torch.tensor(flat, dtype=torch.float64).reshape(count, h + 1)
    return r[:, 0], r[:, 1:]


taus = st.floats(-3, 3).map(lambda exponent: 10**exponent)
margins = st.floats(0, 100, allow_subnormal=False)


@settings(deadline=None)
@given(anchors(), taus, margins, st.floats(0, 4), st.floats(-5, 5))
def test_partials_have_the_right_sum_and_signs(
    pairs: tuple[Tensor, Tensor], tau: float, margin: float, epsilon: float, beta: float
) -> None:
    """Theorem 2; a sum of zero also for every epsilon and for the exact losses, of beta in the extended loss.

    The weight of a pair of the exact losses is minus the slope of one negative, at the distances of the clean pair.
    """
    own: dict[str, dict[str, float]] = {"simple": {}, "info_nce": {"temperature": tau}}
    own["soft_triplet"] = {"temperature": tau, "margin": margin}
    losses = [(partial(info_nce, temperature=tau, epsilon=epsilon), 0.0), (partial(simple, beta=beta), beta)]
    for name, keywords in own.items():
        loss = partial({"simple": simple, "info_nce": info_nce, "soft_triplet": soft_triplet}[name], **keywords)
        pos, neg = partials(loss, *pairs)
        assert (pos >= 0).all()  # up to 1e7 temperatures apart: a partial may underflow to zero, but not change sign
        assert (neg <= 0).all()
        assert loss(*pairs).isfinite().all()
        slope = -partials(loss, torch.zeros_like(pairs[1][:, 0]), pairs[1][:, :1]).neg
        torch.testing.assert_close(pair_weight(pairs[1][:, :1], name, **keywords), slope, rtol=1e-12, atol=1e-300)
        weighted = {"r_clean": 0.5 * pairs[1], "temperature": tau, "margin": keywords.get("margin", 0.0)}
        losses += [(loss, 0.0), (partial(exact, weight=name, **weighted), 0.0)]
    assert partials(lambda r_pos, r_neg: 2 * r_pos, *pairs).neg.eq(0).all(), "a distance that a loss doesn't see"
    for loss, total in losses:
        pos, neg = partials(loss, *pairs)
        size = pos.abs() + neg.abs().sum(-1) + abs(total)
        assert ((pos + neg.sum(-1) - total).abs() <= 16 * EPS * size).all()


def test_full_precision_on_both_sides_of_zero() -> None:
    """softplus(21) of torch drops exp(-21): a relative 4e-11, which this refuses."""
    r_neg = torch.tensor([50.0], dtype=torch.float64)
    for gap in (-40.0, -21.0, 0.0, 19.0, 21.0, 35.0):
        expected = max(gap, 0.0) + math.log1p(math.exp(-abs(gap)))
        for loss in (info_nce, soft_triplet):
            value = loss(torch.tensor(50.0 + gap, dtype=torch.float64), r_neg, temperature=1.0)
            assert value.item() == pytest.approx(expected, rel=1e-14)


def loop_distances(z1: np.ndarray, z2: np.ndarray, negatives: str) -> tuple[np.ndarray, np.ndarray]:
    """The definition, one pair at a time."""
    n, pos, neg = len(z1), [], []
    pools = {"both_views": [z1, z2], "other_view": [z2], "same_view": [z1]}[negatives]
    for mine, partner in [(z1, z2), (z2, z1)] if negatives == "both_views" else [(z1, z2)]:
        for i in range(n):
            pos.append(0.5 * ((mine[i] - partner[i]) ** 2).sum())
            neg.append([0.5 * ((mine[i] - pool[j]) ** 2).sum() for pool in pools for j in range(n) if j != i])
    return np.array(pos), np.array(neg)


@pytest.mark.parametrize("negatives", VIEWS)
@pytest.mark.parametrize("normalize", [False, True])
def test_pair_distances_of_each_replica_are_the_definition(negatives: str, normalize: bool) -> None:
    for n in (2, 5):
        z1, z2 = views(2, 3, n, 2, 4).unbind(-2)
        got = pair_distances(z1, z2, normalize=normalize, negatives=negatives)
        a, b = ((z / z.norm(dim=-1, keepdim=True) if normalize else z).numpy() for z in (z1, z2))
        for place in np.ndindex(2, 3):
            pos, neg = loop_distances(a[place], b[place], negatives)
            np.testing.assert_allclose(got.pos[place], pos, rtol=1e-12)
            np.testing.assert_allclose(got.neg[place], neg, rtol=1e-12)


def test_a_common_offset_costs_no_digits() -> None:
    a, b = (views(6, 2, 3).float() + 1000).unbind(1)
    _, expected = loop_distances(a.double().numpy(), b.double().numpy(), "other_view")
    np.testing.assert_allclose(pair_distances(a, b, negatives="other_view").neg, expected, rtol=1e-5)


def test_exact_takes_its_weights_from_the_clean_pairs_and_gives_them_no_gradient() -> None:
    (z1, z2), (clean, _) = views(5, 2, 3).unbind(1), views(5, 2, 3, seed=1).unbind(1)
    asked = {"normalize": False, "clean": clean, "temperature": TAU}
    for negatives in VIEWS:
        ours = contrastive(z1, z2, "exact", negatives=negatives, **asked)
        pos, neg = loop_distances(z1.numpy(), z2.numpy(), negatives)
        _, r = loop_distances(clean.numpy(), clean.numpy(), negatives)
        assert ours.item() == pytest.approx((expit(-r / TAU) / TAU * (pos[:, None] - neg)).sum(-1).mean(), rel=1e-12)
    assert not exact(torch.ones(4), torch.ones(4, 3), torch.ones(4, 3).requires_grad_(), TAU).requires_grad


def test_no_anchor_stands_for_another() -> None:
    r_pos, r_neg = distances(4, h=3)
    with pytest.raises(ValueError, match="r_neg must have the shape of r_pos"):
        info_nce(r_pos[:1], r_neg, TAU)
    with pytest.raises(ValueError, match="r_neg must have the shape of r_pos"):
        simple(r_pos[:1], r_neg)
