"""The connection against plain autograd in the weight, on layers and networks of every kind."""

from __future__ import annotations

import connection_cases as reference
import pytest
import torch
from torch.nn import functional as F

from sslbook.networks.siamese import ResNet18
from sslbook.operator import frozen
from sslbook.operator.covariance import relative_gap
from sslbook.operator.frozen import FastDoubleBackward
from sslbook.operator.layer import connection, layers_of, open_layer


@pytest.mark.parametrize("name", reference.NETS)
def test_every_product_is_that_of_the_plain_jacobian(name: str) -> None:
    torch.manual_seed(0)
    make, shape = reference.NETS[name]
    net, x = make().double().eval(), torch.randn(3, *shape, generator=torch.Generator().manual_seed(1)).double()
    assert layers_of(net)
    for layer in layers_of(net):
        reference.require_right(net, layer, x)
    assert torch.equal(connection(net, net.get_submodule(layer), x), open_layer(net, layer, x).connections())


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
    assert all(relative_gap(*both) < reference.TOL for both in zip(found[True], found[False], strict=True))
    assert torch.equal(found[True][2], found[False][2])


def test_batch_norm_by_its_statistics_keeps_no_input() -> None:
    draw, kept = torch.Generator().manual_seed(0), []
    x, mean, scale, filters = (torch.randn(*s, generator=draw) for s in ((4, 3, 5), (3,), (3,), (4, 3, 2)))
    with FastDoubleBackward(), torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        F.conv1d(F.batch_norm(x.requires_grad_(), mean, scale.exp(), eps=0.1), filters)
        assert all(tensor.numel() <= filters.numel() for tensor in kept)
        assert torch.equal(
            F.batch_norm(x, None, None, training=True), torch.batch_norm(x, *[None] * 4, True, 0.1, 1e-5, True)
        )
