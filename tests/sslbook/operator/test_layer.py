"""The connection against plain autograd in the weight, on layers and networks of every kind.

Tolerance 1e-12: both sides are sums of at most a thousand products in float64 (epsilon 2e-16), without cancellation worth
speaking of, since errors are measured against the largest item of the batch.
"""

from __future__ import annotations

import connection_cases as reference
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslbook.networks.siamese import ResNet18
from sslbook.operator import frozen
from sslbook.operator.covariance import relative_gap
from sslbook.operator.frozen import FastDoubleBackward
from sslbook.operator.layer import Layer, connection, open_layer, vec

TOL = 1e-12


def build(name: str) -> tuple[nn.Module, Tensor, list[str]]:
    """A network, a batch, and its layers but attention's output projection, whose weight is read without a call."""
    torch.manual_seed(0)
    make, shape = reference.NETS[name]
    net = make().double().eval()
    layers = [key for key, m in net.named_modules() if isinstance(m, Layer) and not key.endswith("out_proj")]
    return net, torch.randn(3, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64), layers


@pytest.mark.parametrize("name", reference.NETS)
def test_every_product_is_that_of_the_plain_jacobian(name: str) -> None:
    net, x, layers = build(name)
    draw = torch.Generator().manual_seed(2)
    assert layers
    for layer in layers:
        k = reference.connections(net, layer, x)
        opened = open_layer(net, layer, x)
        assert relative_gap(opened.connections(), k) < TOL
        assert relative_gap(connection(net, net.get_submodule(layer), x), k) < TOL
        assert relative_gap(opened.output, net(x).detach().flatten(1)) < TOL
        directions = torch.randn(2, *opened.weight.shape, generator=draw, dtype=x.dtype)
        cotangents = torch.randn(2, *opened.output.shape, generator=draw, dtype=x.dtype)
        forward, backward = opened.jvp(directions), opened.vjp(cotangents)
        for i in range(2):
            assert relative_gap(opened.jvp(directions[i]), k.mT @ vec(directions[i])) < TOL
            assert relative_gap(forward[i], k.mT @ vec(directions[i])) < TOL
            pulled = torch.einsum("bno,bo->n", k, cotangents[i])
            assert relative_gap(vec(opened.vjp(cotangents[i])), pulled) < TOL
            assert relative_gap(vec(backward[i]), pulled) < TOL
        assert relative_gap(opened.kernel()(cotangents[0]), torch.einsum("ano,bnp,bp->ao", k, k, cotangents[0])) < TOL
        each = torch.einsum("bno,bo->bn", k, cotangents[0])
        assert relative_gap(opened.sample_gradients(cotangents[0]), each) < TOL
        assert opened.jacobian().shape == (3, *opened.output.shape[1:], opened.preactivation[0].numel())


def test_the_fast_double_backward_gives_the_numbers_of_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a ResNet, whose convolutions and BatchNorms it replaces: other nodes, the same products."""
    torch.manual_seed(0)
    net = reference.worn(ResNet18("cifar", 2).double().eval())
    x = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = {}
    for fast in (True, False):
        if not fast:
            monkeypatch.setattr(frozen, "_FAST", {})
        opened = open_layer(net, "layer2.0.conv1", x)
        found[fast] = opened.jvp(opened.weight), opened.vjp(opened.output).flatten(1), opened.output
    assert all(relative_gap(*both) < TOL for both in zip(found[True], found[False], strict=True))
    assert torch.equal(found[True][2], found[False][2])


def test_batch_norm_by_its_statistics_keeps_no_input_and_weights_that_want_gradients_get_them() -> None:
    draw = torch.Generator().manual_seed(0)
    x, mean, scale, filters = (torch.randn(*s, generator=draw) for s in ((4, 3, 5), (3,), (3,), (4, 3, 2)))
    kept: list[Tensor] = []
    with FastDoubleBackward(), torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        F.conv1d(F.batch_norm(x.requires_grad_(), mean, scale.exp(), eps=0.1), filters)
        assert all(tensor.numel() <= filters.numel() for tensor in kept)
        for wanted in (x, filters.requires_grad_()):
            (gradient,) = torch.autograd.grad(F.conv1d(x, filters).sum(), wanted)
            assert bool(gradient.any())
        assert torch.equal(
            F.batch_norm(x, None, None, training=True), torch.batch_norm(x, *[None] * 4, True, 0.1, 1e-5, True)
        )
