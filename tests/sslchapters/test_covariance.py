"""Finite populations by loops, the residue of Theorem 4, and what runs on real images record."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from sslbook.losses import pairs
from sslbook.networks.small import mlp
from sslbook.operator.covariance import relative_gap
from sslbook.operator.layer import vec
from sslchapters.covariance import checks, runs
from sslchapters.covariance.checks import (
    all_tuples,
    exact_loss,
    expected_gradient,
    nce_loss,
    simple_loss,
    triplet_loss,
)


def test_joint_weights_by_listing_the_draws() -> None:
    r = torch.rand(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    r = (r + r.T) * (1 - torch.eye(3, dtype=torch.float64))
    wanted = torch.zeros(3, 3, dtype=torch.float64)
    for i, a, b in itertools.product(range(3), repeat=3):
        weight = (-torch.stack([r[i, a], r[i, b]]) / 0.5).exp()
        weight = weight / (1 + weight.sum()) / 0.5
        wanted[i, a] += weight[0] * 3 / 9
        wanted[i, b] += weight[1] * 3 / 9
    assert relative_gap(checks.joint_weights(r, 2, 0.5), wanted) < 1e-13
    single = checks.joint_weights(r, 1, 0.5)
    assert relative_gap(single, pairs.pair_weight(r, "info_nce", temperature=0.5)) < 1e-13


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


@pytest.mark.parametrize("views", [1, 3])
def test_an_estimate_from_few_views_by_a_loop_over_draws(views: int) -> None:
    k = torch.randn(3, 2, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    estimates = []
    for i, j in itertools.product(range(3), repeat=2):
        for drawn in itertools.product(range(2), repeat=2 * views):
            pair = torch.stack([k[i, list(drawn[:views])].mean(0), k[j, list(drawn[views:])].mean(0)])
            estimates.append(sum(torch.cov(column.T) for column in pair.unbind(-1)))
    mean = torch.stack([torch.as_tensor(e) for e in estimates]).mean(0)
    assert relative_gap(checks.mean_estimate(k, views), mean) < 1e-13


def test_bounds_by_hand() -> None:
    net = mlp((1, 1))
    net[0].weight.detach().fill_(2.0)
    clean = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    views = torch.tensor([[[1.0], [3.0]], [[1.0], [1.0]]], dtype=torch.float64)  # outputs 2, 6 and 2, 2; clean 0 and 2
    found = checks.residue(net, "0", views, clean, tau=1.0)
    # the outputs' variance is 4 and 0, their squared bias 16 and 0;
    # f(x) and f(x') are 2 apart with probability one half; M_K = 3
    assert found.printed == pytest.approx(2 * 9 * (2 * (1 * (2 + 4)) / 2 + 3 * 2))
    assert found.corrected == pytest.approx(2 * 9 / 4 * (2 * (1 * 20**0.5) / 2 + 3 * 2 + 2 * 8))
    assert found.unbiased == pytest.approx(2 * 9 / 4 * (2 * (1 * 2) / 2 + 3 * 2))


@pytest.fixture(scope="module")
def scene() -> runs.Scene:
    return runs.digits_scene(32)


def test_a_batch_is_what_backward_through_the_network_gives(scene: runs.Scene) -> None:
    net = runs.scene_network(scene)
    weight = net[2].weight
    assert isinstance(weight, Tensor)
    for loss, normalize in (("simple", False), ("info_nce", True)):
        op = runs.scene_operator(net, "2", scene, loss=loss)
        found = runs.simclr_gradients(op, 8, loss=loss, replicates=2, seed=3)
        places = runs.batches_of(op.population, 8, 2, seed=3)
        draw = torch.Generator().manual_seed(3)
        sample = torch.rand(2, 32, generator=draw).argsort(1)[:, :8]
        views = [torch.randint(9, sample.shape, generator=draw) for _ in range(2)]
        for r in range(2):
            z = [net(scene.views[sample[r], v[r]]) for v in views]
            extra = {"temperature": 0.5} if normalize else {}
            value = pairs.contrastive(z[0], z[1], loss, normalize=normalize, **extra)
            net.zero_grad()
            value.backward()
            assert weight.grad is not None
            assert relative_gap(vec(found[r]), vec(weight.grad)) < 1e-13
            for place, v in zip(places, views, strict=True):
                assert torch.equal(place[r], 9 * sample[r] + v[r])
