"""Finite populations by loops, the residue of Theorem 4, and what runs on real images record."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sslbook.losses import pairs
from sslbook.networks.small import mlp
from sslbook.operator.covariance import relative_gap
from sslbook.operator.layer import vec
from sslchapters.covariance import checks, runs


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
