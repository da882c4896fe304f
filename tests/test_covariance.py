"""Theorems 3 and 4, Eq. 56, 7, 80 and Corollary 1 on finite populations, against enumeration; the kernel; the enumeration."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from gap_cases import assert_gaps
from torch import Tensor

from sslbook import losses
from sslbook.chapters.covariance import identities, kernel, population, several
from sslbook.chapters.covariance.population import (
    all_tuples,
    exact_loss,
    expected_gradient,
    nce_loss,
    random_tuples,
    simple_loss,
    triplet_loss,
)
from sslbook.connection import unvec, vec
from sslbook.gaps import relative_gap
from sslbook.networks import mlp
from sslbook.operators import covariance_operator

FAMILIES: dict[str, tuple[Callable[..., identities.Gaps], tuple[str, ...], tuple[str, ...]]] = {
    "A-Thm3": (
        identities.theorem3_gaps,
        ("one tower", "both towers, doubled", "distinct negatives, N/(N-1)", "dense"),
        (
            *("not centred", "views not averaged"),
            *("both towers, not doubled", "distinct negatives, not corrected"),
        ),
    ),
    "A-Thm3, biases": (identities.affine_gaps, ("exact update",), ("operator",)),
    "A-Eq56": (
        identities.normalized_gaps,
        ("one tower", "both towers, doubled", "step along the weights", "transpose on the weights"),
        ("projection left out", "output not normalised", "transpose", "operator on the weights"),
    ),
    "A-Thm4": (
        identities.weighted_gaps,
        (
            *("soft_triplet, one tower", "soft_triplet, both towers, doubled"),
            *("info_nce, one tower", "info_nce, both towers, doubled", "dense"),
        ),
        ("constant weight", "half forgotten"),
    ),
    "A-Eq7": (
        identities.exact_loss_gaps,
        ("H = 1, one tower", "H = 2, one tower", "H = 3, one tower", "both towers, doubled"),
        ("weights from augmented distances", "gradient through the weights"),
    ),
    "A-Cor1": (
        identities.extended_gaps,
        ("corollary", "sum of its parts", "dense"),
        ("sign of beta", "EV left out"),
    ),
}


@pytest.mark.parametrize("seed", [0, 1000])
@pytest.mark.parametrize("name", FAMILIES)
def test_theorems_hold_and_broken_variants_do_not(name: str, seed: int) -> None:
    gaps, holds, broken = FAMILIES[name]
    assert_gaps(gaps(seed=seed), holds, broken)


def test_eigenvalues() -> None:
    assert identities.eigenvalue_margin() > -1e-13
    assert identities.eigenvalue_margin(beta=-1.0) > -1e-13
    assert identities.eigenvalue_margin(beta=0.5) < -0.1
    assert identities.asymmetry() > 0.05
    assert identities.asymmetry(normalize=False) < 1e-14


def test_monte_carlo_goes_down_as_the_root_of_the_batch() -> None:
    curve = identities.monte_carlo((32, 128, 512, 2048), replicates=64)
    assert curve.rate == pytest.approx(-0.5, abs=0.05)
    assert curve.error[0] > 5 * curve.error[-1]
    exact = identities.Curve((1, 10, 100), (3.0, 0.3, 0.03))
    assert exact.rate == pytest.approx(-1.0)


def test_a_batch_of_the_monte_carlo_run_is_a_gradient() -> None:
    """On all tuples in place of random ones, the same gradient is the operator's, exactly."""
    net = mlp((6, 10, 8, 4))
    views = torch.randn(4, 2, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    op = covariance_operator(net, "2", views)
    t = random_tuples(4, 2, 200, seed=1)
    drawn = -expected_gradient(net, "2", views, simple_loss(), t)
    y = op.opened.output
    cotangent = torch.zeros_like(y).index_add_(0, t.anchor, (y[t.positive] - y[t.negative[:, 0]]) / len(t))
    assert relative_gap(vec(op.opened.vjp(cotangent)), vec(drawn)) < 1e-12
    assert relative_gap(vec(op.update()), vec(drawn)) > 1e-2


@pytest.mark.parametrize("negatives", [1, 2, 3])
def test_several_negatives(negatives: int) -> None:
    found = several.several_negatives(negatives)
    assert found.negatives == negatives
    assert found.one_tower < 1e-12
    assert found.both_towers < 1e-12
    assert min(found.without_tau, found.without_half) > 0.05
    if negatives == 1:
        assert max(found.symmetrised, found.asymmetry) < 1e-12
    else:
        assert min(found.symmetrised, found.asymmetry) > 5e-3


def test_joint_weights_by_listing_the_draws() -> None:
    r = torch.rand(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    r = (r + r.T) * (1 - torch.eye(3, dtype=torch.float64))
    wanted = torch.zeros(3, 3, dtype=torch.float64)
    for i, a, b in itertools.product(range(3), repeat=3):
        weight = (-torch.stack([r[i, a], r[i, b]]) / 0.5).exp()
        weight = weight / (1 + weight.sum()) / 0.5
        wanted[i, a] += weight[0] * 3 / 9
        wanted[i, b] += weight[1] * 3 / 9
    assert relative_gap(several.joint_weights(r, 2, 0.5), wanted) < 1e-13
    single = several.joint_weights(r, 1, 0.5)
    assert relative_gap(single, losses.pair_weight(r, "info_nce", tau=0.5)) < 1e-13


def test_the_operator_is_not_the_kernel() -> None:
    found = kernel.kernel_comparison(4)
    assert (found.operator_size, found.kernel_size, found.network_size) == (24, 8, 8)
    assert found.operator_rank == found.centred_rank == 6  # (N - 1) n_L: centring takes one sample away
    assert 6 < found.kernel_rank <= found.network_rank <= 8
    assert found.spectrum_gap < 1e-12
    assert min(found.uncentred_gap, found.unaveraged_gap) > 0.02
    many = kernel.kernel_comparison(40)
    assert many.operator_rank <= many.operator_size == 24 < many.kernel_size == 80
    assert many.spectrum_gap < 1e-12


# -- populations ---------------------------------------------------------------------------------------------------------------


def test_all_tuples_are_all() -> None:
    t = all_tuples(3, 2, 2)
    rows = {tuple(row) for row in torch.cat([t.anchor[:, None], t.positive[:, None], t.negative], 1).tolist()}
    assert len(t) == len(rows) == 3 * 2 * 2 * 6**2
    assert all(a // 2 == b // 2 for a, b, _, _ in rows)
    apart = all_tuples(3, 2, 2, distinct=True)
    assert len(apart) == 3 * 2 * 2 * 4**2
    assert bool((apart.negative // 2 != (apart.anchor // 2)[:, None]).all())
    with pytest.raises(ValueError, match="too many to enumerate; draw them with random_tuples"):
        all_tuples(100, 10, 3)


def test_random_tuples_are_uniform() -> None:
    t = random_tuples(3, 2, 60_000, 2, seed=0)
    assert torch.equal(t.anchor // 2, t.positive // 2)
    for index in (t.anchor, t.positive, t.negative[:, 0], t.negative[:, 1]):
        share = torch.bincount(index, minlength=6) / len(t)
        assert float((share - 1 / 6).abs().max()) < 0.008  # five standard deviations
    assert torch.equal(random_tuples(3, 2, 10, seed=4).anchor, random_tuples(3, 2, 10, seed=4).anchor)
    assert not torch.equal(random_tuples(3, 2, 10, seed=4).anchor, random_tuples(3, 2, 10, seed=5).anchor)


def test_the_expected_gradient_by_a_loop_over_tuples() -> None:
    net = mlp((3, 4, 2), "leaky_relu")
    views = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    clean = views.mean(1)
    weight = net[0].weight
    assert isinstance(weight, Tensor)
    for make, both, normalize in itertools.product(
        (simple_loss(0.3), triplet_loss(0.5, 0.1), nce_loss(0.5), exact_loss(0.5)), (False, True), (False, True)
    ):
        unit = torch.nn.functional.normalize if normalize else (lambda y: y)
        total: Tensor = torch.zeros((), dtype=torch.float64)
        for i, a, b, j, c in itertools.product(range(3), range(2), range(2), range(3), range(2)):
            anchor, other, negative = (unit(net(x[None])) for x in (views[i, a], views[i, b], views[j, c]))
            if not both:
                other, negative = other.detach(), negative.detach()
            clean_pair = [unit(net(clean[s][None])).detach() for s in (i, j)]
            r = [0.5 * (p - q).square().sum(1) for p, q in ((anchor, other), (anchor, negative), clean_pair)]
            total = total + make(r[0], r[1][:, None], r[2][:, None]).sum() / (3 * 2 * 2 * 6)
        (wanted,) = torch.autograd.grad(total, weight)
        found = expected_gradient(net, "0", views, make, all_tuples(3, 2), clean=clean, both=both, normalize=normalize)
        assert relative_gap(vec(found), vec(wanted)) < 1e-11


@pytest.mark.parametrize("views", [1, 2, 3])
def test_an_estimate_from_few_views_by_a_loop_over_draws(views: int) -> None:
    k = torch.randn(3, 2, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    estimates = []
    for i, j in itertools.product(range(3), repeat=2):
        for drawn in itertools.product(range(2), repeat=2 * views):
            pair = torch.stack([k[i, list(drawn[:views])].mean(0), k[j, list(drawn[views:])].mean(0)])
            estimates.append(sum(torch.cov(column.T) for column in pair.unbind(-1)))
    mean = torch.stack([torch.as_tensor(e) for e in estimates]).mean(0)
    assert relative_gap(population.mean_estimate(k, views), mean) < 1e-14


def test_an_estimate_from_few_views_is_too_large_by_a_share_of_the_variance_within() -> None:
    k = torch.randn(4, 3, 5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    between, within = k.mean(1) - k.mean((0, 1)), k - k.mean(1, keepdim=True)
    ve = torch.einsum("ino,imo->nm", between, between) / 4
    ev = torch.einsum("ijno,ijmo->nm", within, within) / 12
    for views in (1, 2, 3):
        assert relative_gap(population.mean_estimate(k, views), ve + ev / views) < 1e-13
        assert relative_gap(population.mean_estimate(k, views), ve) > 0.1


@pytest.mark.parametrize(("views", "message"), [(0, "at least 1"), (9, "too many")])
def test_estimates_that_cannot_be_listed(views: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        population.mean_estimate(torch.ones(4, 3, 2, 1), views)


def test_the_package_repeats_the_operators() -> None:
    assert covariance_operator.__module__ == "sslbook.operators"
    assert population.TupleLoss is not None
    assert unvec(vec(torch.ones(2, 3)), (2, 3)).shape == (2, 3)


def test_a_rank_has_no_unit() -> None:
    values = torch.tensor([1e-30, 1e-12, 3.0], dtype=torch.float64)
    assert [kernel._rank(scale * values) for scale in (1.0, 1e-9, 1e9)] == [1, 1, 1]
    assert kernel._rank(torch.tensor([0.5, 1.0]) * 1e-20) == 2
