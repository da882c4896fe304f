"""What an opened layer refuses; that whatever it doesn't refuse is right; and that it leaves the caller's things alone."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import connection_cases as reference
import pytest
import torch
from hostile_networks import NETWORKS
from torch import Tensor, nn

from sslbook.networks.small import initialize, mlp
from sslbook.operator.covariance import covariance_operator, relative_gap
from sslbook.operator.layer import open_layer, vec


def built(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    case = NETWORKS[name]
    net, shape = case.make().train(case.training), case.inputs
    if callable(shape):
        x = shape()
        return (net.double() if x.dtype in (torch.float64, torch.int64) else net), x
    return net.double(), torch.randn(6, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_hostile_network_is_served_right_or_refused(name: str) -> None:
    case = NETWORKS[name]
    net, x = built(name)
    if case.refused:
        with pytest.raises((ValueError, TypeError), match=case.refused):
            open_layer(net, case.layer, x)
        return
    reference.require_right(net, case.layer, x, case.plain)


def test_four_samples_are_enough_to_see_that_they_are_coupled() -> None:
    net, x = built("less the mean, below")
    with pytest.raises(ValueError, match="other samples"):
        open_layer(net, "a", x[:4])


def test_what_is_opened_is_the_network_as_it_was() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).double().eval()
    initialize(net, 0)
    x = X.flatten(0, 1)
    opened, below = open_layer(net, "0", x), open_layer(net, "3", x)
    weight, wanted = opened.weight.clone(), open_layer(net, "0", x).connections()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net(x).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        for tensor in (net[3].weight, net[1].running_var, net[0].weight, x):
            tensor.mul_(2)
    net.train()
    assert torch.equal(opened.weight, weight)
    assert torch.equal(opened.connections(), wanted)
    assert relative_gap(opened.jvp(weight), wanted.mT @ vec(weight)) < reference.TOL
    assert below.vjp(below.output).isfinite().all()
    assert relative_gap(open_layer(net.eval(), "3", x).weight, net[3].weight) == 0


def test_an_operator_is_freed_when_it_is_let_go() -> None:
    """Without the cyclic collector: graphs and views are large."""
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    for use in (lambda op: op.exact_update(), lambda op: op.to_scipy(), lambda op: op.top_eigenpairs(2)):
        gc.collect()
        gc.disable()
        try:
            op = covariance_operator(net, "0", X.float())
            use(op)
            opened = weakref.ref(op.opened)
            del op
            assert opened() is None
        finally:
            gc.enable()


NET, X = mlp((4, 2)), torch.rand(3, 2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
PAIRS: dict[str, Any] = {"loss": "info_nce", "temperature": 1.0, "clean": X[:, 0]}
CONVOLUTION = nn.Sequential(nn.Conv2d(2, 1, 2), nn.Flatten())
SILENT = nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU()).double()
nn.init.constant_(SILENT[0].weight, -1.0)
BAD: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "net can't take a batch of shape .* torch.float32.*same dtype": (NET, X.float(), {}),
    r"net can't take .*views of images alone are images\[:, None\]": (CONVOLUTION, torch.rand(3, 2, 4, 4), {}),
    "net must have finite outputs": (NET, X / 0, {}),
    "loss must be one of simple, .*; did you mean info_nce": (NET, X, {"loss": "infonce"}),
    "loss='info_nce' has no use for normalize": (NET, X, PAIRS | {"clean": None, "normalize": True}),
    r"clean must hold one sample .*, got None": (NET, X, {"loss": "soft_triplet", "temperature": 1.0}),
    r"clean must hold one sample for each row of views, \(3, 4\), got \(2, 4\)": (NET, X, PAIRS | {"clean": X[:2, 0]}),
    "aren't zero: that of at least one view is": (SILENT, X, {"normalize": True}),
    "one of inner products, of outputs of any width": (NET, X, {"loss": "vicreg"}),
    "so it sees more than that": (NET, X, {"loss": lambda z: (z[:, 0] * z[:, 1].detach()).sum()}),
    "loss must map the outputs .* to one number, a tensor with its graph": (
        NET,
        X,
        {"loss": lambda z: z.detach().sum()},
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_call_is_refused_in_a_sentence(message: str) -> None:
    net, views, options = BAD[message]
    with pytest.raises((TypeError, ValueError), match=message):
        covariance_operator(net, "0", views, **options)


def test_bad_layers_directions_and_pairs() -> None:
    net = mlp((4, 5, 3))
    op, skew = covariance_operator(net, "0", X), covariance_operator(net, "0", X, normalize=True)
    for call, message in (
        (lambda: open_layer(net, "1", X[0]), "layer '1' must be one of the network's .* which are '0', '2'"),
        (lambda: op.apply(torch.ones(4, 5)), r"direction must have shape \(5, 4\) or \(k, 5, 4\), got \(4, 5\)"),
        (lambda: skew.top_eigenpairs(2), "symmetric operators; for others use to_scipy"),
        (lambda: op.top_eigenpairs(21), "k must be at least 1 and at most 20, got 21"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
