"""BatchNorm taken apart: PyTorch's own layer where both halves act, a formula written out for each half by itself."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from sslbook.networks.batchnorm import MODES, BatchNorm, batch_normalize

EPS = 1e-5


def draw(*shape: int, seed: int = 0) -> Tensor:
    return 1.5 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.7


SHAPES = [((7, 4), nn.BatchNorm1d), ((6, 4, 5), nn.BatchNorm1d), ((5, 4, 3, 2), nn.BatchNorm2d)]


@pytest.mark.parametrize(("shape", "layer"), SHAPES)
@pytest.mark.parametrize("affine", [False, True])
def test_all_normal_is_pytorchs_layer(shape: tuple[int, ...], layer: type[nn.Module], affine: bool) -> None:
    ours = BatchNorm(4, affine=affine, dtype=torch.float64)
    theirs = layer(4, affine=affine).double()  # type: ignore[call-arg]
    if affine:
        for net in (ours, theirs):
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
        assert torch.allclose(ours.running_mean, theirs.running_mean)  # type: ignore[arg-type]
        assert torch.allclose(ours.running_var, theirs.running_var)  # type: ignore[arg-type]
    x = draw(*shape, seed=20)
    assert torch.allclose(ours.eval()(x), theirs.eval()(x), rtol=1e-12)


def centre_of(x: Tensor) -> Tensor:
    return x.mean(0, keepdim=True)


def scale_of(x: Tensor, eps: float = EPS, unbiased: bool = False) -> Tensor:
    return (x.var(0, keepdim=True, correction=int(unbiased)) + eps).sqrt()


def value(x: Tensor, mean: str, std: str) -> Tensor:
    """The forward pass, written out."""
    y = x - centre_of(x) if mean in ("normal", "detach") else x
    return y / scale_of(x) if std in ("normal", "detach") else y


def pulled(x: Tensor, c: Tensor, mean: str, std: str) -> Tensor:
    r"""The gradient in x of sum(c y), by the chain rule on paper.

    With y = (x - m) / s: dy_i = (dx_i - dm) / s - (x_i - m) ds / s^2,  dm = mean(dx),  ds = mean((x - centre) dx) / s.
    """
    n, s = len(x), scale_of(x)
    forward_std, through_std = std in ("normal", "detach"), std in ("normal", "backward")
    divided = s if forward_std else torch.ones_like(s)
    g = c / divided
    total = g - g.mean(0, keepdim=True) if mean in ("normal", "backward") else g
    if through_std:
        y = x - centre_of(x) if mean in ("normal", "detach") else x
        ds = (x - centre_of(x)) / (n * s)  # d s / d x_i
        total = total - (c * y).sum(0, keepdim=True) * ds / (divided * s)
    return total


@pytest.mark.parametrize(("mean", "std"), list(itertools.product(MODES, MODES)))
def test_every_pair_of_modes_has_its_value_and_its_gradient(mean: str, std: str) -> None:
    for seed in range(5):
        x, c = draw(9, 4, seed=seed).requires_grad_(True), draw(9, 4, seed=50 + seed)
        y = batch_normalize(x, mean=mean, std=std)
        (gradient,) = torch.autograd.grad((y * c).sum(), x)
        with torch.no_grad():
            assert torch.allclose(y, value(x, mean, std), rtol=1e-12)
            assert torch.allclose(gradient, pulled(x, c, mean, std), rtol=1e-9, atol=1e-12)


def test_unbiased_and_eps() -> None:
    x = draw(5, 3)
    y = batch_normalize(x, eps=0.0, unbiased=True)
    assert torch.allclose(y, (x - x.mean(0)) / x.std(0), rtol=1e-12)
    layer = BatchNorm(3, eps=0.5, unbiased=True, dtype=torch.float64)
    assert torch.allclose(layer(x), (x - x.mean(0)) / (x.var(0) + 0.5).sqrt(), rtol=1e-12)


def test_eval_uses_the_running_statistics() -> None:
    x, fresh = draw(50, 3), draw(8, 3, seed=4)
    for mean, std in itertools.product(MODES, MODES):
        layer = BatchNorm(3, mean=mean, std=std, momentum=1.0, dtype=torch.float64)
        layer(x)
        shift = x.mean(0) if mean in ("normal", "detach") else 0.0
        scale = (x.var(0) + EPS).sqrt() if std in ("normal", "detach") else 1.0
        before = layer.running_mean.clone()
        assert torch.allclose(layer.eval()(fresh), (fresh - shift) / scale, rtol=1e-12)
        assert torch.equal(layer.running_mean, before)


def test_replicas_are_apart() -> None:
    x = draw(6, 3, 9, 4)
    for mean, std in itertools.product(MODES, MODES):
        together = batch_normalize(x, mean=mean, std=std, dims=2)
        alone = torch.stack([torch.stack([batch_normalize(b, mean=mean, std=std) for b in a]) for a in x])
        assert torch.allclose(together, alone, rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: BatchNorm(2, std="no"), "std must be one of"),
        (lambda: batch_normalize(draw(3, 2), eps=-1e-3), "eps must be at least 0"),
        (lambda: BatchNorm(2, dtype=torch.float64)(draw(3, 4)), "x must have shape"),
        (lambda: batch_normalize(draw(1, 2)), "dims must cover two numbers or more"),
    ],
)
def test_bad_input_is_named(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_a_mean_alone_takes_a_batch_of_one() -> None:
    assert batch_normalize(draw(1, 2), std="omit").abs().max() < 1e-15
    assert "mean='detach'" in repr(BatchNorm(2, mean="detach"))
