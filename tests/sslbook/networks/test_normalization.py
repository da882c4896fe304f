"""BatchNorm taken apart: PyTorch's own layer where both halves act, a formula written out for each half by itself."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from sslbook.networks.batchnorm import MODES, BatchNorm, batch_normalize

EPS = 1e-5
FORWARD, BACKWARD = ("normal", "detach"), ("normal", "backward")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return 1.5 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.7


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(
    ("shape", "layer"), [((7, 4), nn.BatchNorm1d), ((6, 4, 5), nn.BatchNorm1d), ((5, 4, 3, 2), nn.BatchNorm2d)]
)
def test_all_normal_is_pytorchs_layer(shape: tuple[int, ...], layer: type[nn.Module], affine: bool) -> None:
    ours = BatchNorm(4, affine=affine, dtype=torch.float64)
    theirs = layer(4, affine=affine).double()
    for net in (ours, theirs) if affine else ():
        net.weight.data.copy_(draw(4, seed=8))
        net.bias.data.copy_(draw(4, seed=9))
    for i in range(3):
        gradients = []
        for net in (ours, theirs):
            x = draw(*shape, seed=i).requires_grad_(True)
            y = net(x)
            leaves = [x, *net.parameters()]
            gradients.append([y, *torch.autograd.grad((y * draw(*shape, seed=10 + i)).sum(), leaves)])
        for a, b in zip(*gradients, strict=True):
            assert torch.allclose(a, b, rtol=1e-10, atol=1e-12)
        assert torch.allclose(ours.running_mean, theirs.running_mean)
        assert torch.allclose(ours.running_var, theirs.running_var)
    x = draw(*shape, seed=20)
    assert torch.allclose(ours.eval()(x), theirs.eval()(x), rtol=1e-12)


def pulled(x: Tensor, c: Tensor, mean: str, std: str) -> Tensor:
    r"""The gradient in x of sum(c y), by the chain rule on paper.

    With y = (x - m) / s: dy_i = (dx_i - dm) / s - (x_i - m) ds / s^2,  dm = mean(dx),  ds = mean((x - centre) dx) / s.
    """
    centre, s = x.mean(0, keepdim=True), (x.var(0, keepdim=True, correction=0) + EPS).sqrt()
    divided = s if std in FORWARD else torch.ones_like(s)
    g = c / divided
    total = g - g.mean(0, keepdim=True) if mean in BACKWARD else g
    if std in BACKWARD:
        y = x - centre if mean in FORWARD else x
        total = total - (c * y).sum(0, keepdim=True) * (x - centre) / (len(x) * s) / (divided * s)
    return total


@pytest.mark.parametrize("mean", MODES)
def test_every_pair_of_modes_has_its_value_its_gradient_and_its_replicas(mean: str) -> None:
    for std, seed in itertools.product(MODES, range(5)):
        x, c = draw(9, 4, seed=seed).requires_grad_(True), draw(9, 4, seed=50 + seed)
        y = batch_normalize(x, mean=mean, std=std)
        (gradient,) = torch.autograd.grad((y * c).sum(), x)
        wanted = x - x.mean(0) if mean in FORWARD else x
        wanted = wanted / (x.var(0, correction=0) + EPS).sqrt() if std in FORWARD else wanted
        assert torch.allclose(y, wanted, rtol=1e-12)
        assert torch.allclose(gradient, pulled(x, c, mean, std), rtol=1e-9, atol=1e-12)
        batches = draw(3, 9, 4, seed=seed)
        alone = torch.stack([batch_normalize(one, mean=mean, std=std) for one in batches])
        assert torch.allclose(batch_normalize(batches, mean=mean, std=std, dims=1), alone, rtol=1e-12)


def test_running_statistics_replace_the_batch_in_evaluation() -> None:
    x, fresh = draw(50, 3), draw(8, 3, seed=4)
    for mean, std in itertools.product(MODES, MODES):
        layer = BatchNorm(3, mean=mean, std=std, momentum=1.0, dtype=torch.float64)
        layer(x)
        before = layer.running_mean.clone()
        wanted = (fresh - x.mean(0) * (mean in FORWARD)) / ((x.var(0) + EPS).sqrt() if std in FORWARD else 1.0)
        assert torch.allclose(layer.eval()(fresh), wanted, rtol=1e-12)
        assert torch.equal(layer.running_mean, before)


def test_unbiased_eps_and_batches_of_one() -> None:
    x = draw(5, 3)
    assert torch.allclose(batch_normalize(x, eps=0.0, unbiased=True), (x - x.mean(0)) / x.std(0), rtol=1e-12)
    layer = BatchNorm(3, eps=0.5, unbiased=True, dtype=torch.float64)
    assert torch.allclose(layer(x), (x - x.mean(0)) / (x.var(0) + 0.5).sqrt(), rtol=1e-12)
    assert batch_normalize(draw(1, 2), std="omit").abs().max() < 1e-15
    with pytest.raises(ValueError, match="dims must cover two numbers or more"):
        batch_normalize(draw(1, 2))


def test_half_precision_keeps_the_digits_of_its_mean() -> None:
    x = draw(64, 3).half()
    assert torch.allclose(BatchNorm(3)(x), BatchNorm(3)(x.float()))
