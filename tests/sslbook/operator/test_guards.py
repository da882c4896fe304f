"""What an opened layer refuses; and that whatever it doesn't refuse is right."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hostile_networks import NETWORKS as CASES
from torch import Tensor, nn

from sslbook.networks.small import initialize, mlp
from sslbook.operator.covariance import covariance_operator, intra_operator, relative_gap
from sslbook.operator.layer import open_layer, vec

TOL = 1e-12


def built(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    case = CASES[name]
    net = case.make().train(case.training)
    if callable(case.inputs):
        x = case.inputs()
        return (net.double() if x.dtype in (torch.float64, torch.int64) else net), x
    complex_ = any(p.is_complex() for p in net.parameters())
    x = torch.randn(6, *case.inputs, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (net if complex_ else net.double()), x


def plain_connections(net: nn.Module, weight: Tensor, x: Tensor) -> Tensor:
    """``(B, n, n_L)`` by autograd in the network's own weight, the whole batch at once."""
    weight.requires_grad_()
    y = net(x).flatten(1)
    rows = [torch.autograd.grad(value, weight, retain_graph=True)[0] for value in y.flatten()]
    return torch.stack([vec(row) for row in rows]).unflatten(0, y.shape).mT


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning", "ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_a_hostile_network_is_served_right_or_refused(name: str) -> None:
    case = CASES[name]
    net, x = built(name)
    if case.refused:
        with pytest.raises((ValueError, TypeError), match=case.refused):
            open_layer(net, case.layer, x)
        return
    opened = open_layer(net, case.layer, x)
    plain = case.plain(net) if case.plain else net
    weight = plain.get_submodule(case.layer).weight
    k = plain_connections(plain, weight, x)
    alone = torch.cat([plain_connections(plain, weight, sample) for sample in x[:, None]])
    assert relative_gap(alone, k) < TOL, "the case itself: a network of single samples"
    assert relative_gap(opened.weight, weight) < TOL
    assert relative_gap(opened.connections(), k) < TOL
    directions = torch.randn(2, *weight.shape, generator=torch.Generator().manual_seed(2), dtype=weight.dtype)
    for direction, image in zip(directions, opened.jvp(directions), strict=True):
        assert relative_gap(image, k.mT @ vec(direction)) < TOL
    assert relative_gap(vec(opened.vjp(image)), torch.einsum("bno,bo->n", k, image)) < TOL


def net_and_batch() -> tuple[nn.Sequential, Tensor]:
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).double().eval()
    initialize(net, 0)
    return net, torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_what_is_opened_is_the_network_as_it_was() -> None:
    net, x = net_and_batch()
    wanted = open_layer(net, "0", x).connections()
    opened, below = open_layer(net, "0", x), open_layer(net, "3", x)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net(x).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        net[3].weight.mul_(2)
        net[1].running_var.add_(1)
        weight = opened.weight.clone()
        net[0].weight.zero_()
        x.zero_()
    assert torch.equal(opened.weight, weight)
    assert torch.equal(opened.connections(), wanted)
    assert relative_gap(opened.jvp(weight), wanted.mT @ vec(weight)) < TOL
    assert below.vjp(below.output).isfinite().all()
    assert relative_gap(open_layer(net, "3", x).weight, net[3].weight) == 0


def test_four_samples_are_enough_to_see_that_they_are_coupled() -> None:
    net, x = CASES["less the mean, below"].make().double(), net_and_batch()[1][:4]
    with pytest.raises(ValueError, match="other samples"):
        open_layer(net, "a", x)


GIVEN: dict[str, tuple[object, object, type[Exception], str]] = {
    "no network": (None, torch.ones(2, 4), TypeError, r"net must be a torch.nn.Module, got NoneType"),
    "a list": (nn.Linear(4, 3), [[1.0, 2.0]], TypeError, r"x must be a dense torch tensor \(inputs, ...\), got list"),
    "no inputs": (nn.Linear(4, 3), torch.ones(0, 4), ValueError, r"at least one input, got \(0, 4\)"),
    "another precision": (nn.Linear(4, 3).double(), torch.ones(2, 4), ValueError, r"\(2, 4\) and torch.float32.*dtype"),
    "NaN": (nn.Linear(4, 3), torch.full((2, 4), float("nan")), ValueError, "x must be finite"),
    "meta": (nn.Linear(4, 3), torch.ones(2, 4, device="meta"), ValueError, "meta"),
}


@pytest.mark.parametrize("what", GIVEN)
def test_what_is_given_is_asked_for_in_a_sentence(what: str) -> None:
    net, x, error, message = GIVEN[what]
    with pytest.raises(error, match=message):
        open_layer(net, "", x)  # type: ignore[arg-type]


def relu(weight: float) -> nn.Sequential:
    """It answers what is of one sign alone."""
    net = nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU()).double()
    nn.init.constant_(net[0].weight, weight)
    return net


class Nothing(nn.Module):
    """No output is left."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :0]


X = torch.ones(3, 2, 4, dtype=torch.float64)
PAIRS: dict[str, Any] = {"loss": "info_nce", "temperature": 1.0, "clean": X[:, 0]}
BAD: dict[str, tuple[nn.Module, Tensor, dict[str, Any]]] = {
    r"views must have shape \(samples, views, ...\), got \(2, 4\)": (mlp((4, 2)), X[0], {}),
    r"give clean=\(N, ...\) and temperature": (mlp((4, 2)), X, {"loss": "soft_triplet", "temperature": 1.0}),
    "normalize has no use with loss='info_nce' without clean": (
        mlp((4, 2)),
        X,
        PAIRS | {"clean": None, "normalize": True},
    ),
    "beta has no use with loss='info_nce'": (mlp((4, 2)), X, PAIRS | {"beta": 0.5}),
    "must hold numbers, got the shape": (nn.Sequential(nn.Linear(4, 2), Nothing()).double(), X, {}),
    "clean must be finite numbers": (mlp((4, 2)), X, PAIRS | {"clean": X[:, 0] / 0}),
    r"such as those: \(3, 4\) in torch.float64 on cpu, got .* in torch.float32": (
        mlp((4, 2)),
        X,
        PAIRS | {"clean": X[:, 0].float()},
    ),
    "aren't zero: that of at least one clean sample is": (
        relu(1.0),
        X,
        PAIRS | {"clean": torch.cat([X[:2, 0], -X[:1, 0]]), "normalize": True},
    ),
    "aren't zero: that of at least one view is": (relu(-1.0), torch.cat([X, -X[:1]]), {"normalize": True}),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input(message: str) -> None:
    net, views, given = BAD[message]
    with pytest.raises((TypeError, ValueError), match=message):
        covariance_operator(net, "0", views, **given)


class Image(nn.Module):
    """It asks for images by an assertion, as vision transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        assert x.ndim == 4, "not an image"
        return self.head(x.mean((2, 3)))


def flat(inputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 5), nn.ReLU(), nn.Linear(5, 2))


def conv() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))


OPERATORS = pytest.mark.parametrize("operator", [covariance_operator, intra_operator])


@OPERATORS
@pytest.mark.parametrize(
    ("net", "layer", "shape", "said"),
    [
        (flat(64), "1", (8, 3, 8, 8), "3 views each of (8, 8): did you pass images?"),
        (flat(48), "1", (8, 3, 6, 8), "axis of channels, (8, 3, 1, 6, 8), says that they are"),
        (flat(48).bfloat16(), "1", (8, 1, 6, 8), "views are (samples, views, ...)"),
    ],
)
def test_what_may_be_images_is_warned_of(
    operator: Any, net: nn.Module, layer: str, shape: tuple[int, ...], said: str
) -> None:
    with pytest.warns(UserWarning, match=re.escape(said)) as told:
        found = operator(net, layer, torch.rand(shape))
    assert len(told) == 1
    assert told[0].filename == __file__
    assert found.population == shape[:2]
    operator(
        net, layer, torch.rand(shape)[:, :, None]
    )  # as the sentence says: no warning, which would be an error here


@OPERATORS
@pytest.mark.parametrize(
    ("net", "layer", "shape"),
    [
        (flat(192), "1", (8, 3, 8, 8)),
        (conv(), "0", (8, 3, 8, 8)),
        (Image(), "head", (8, 3, 8, 8)),
    ],
)
def test_images_that_a_network_refuses_are_asked_about(
    operator: Any, net: nn.Module, layer: str, shape: tuple[int, ...]
) -> None:
    said = f"net can't take x of shape .*; x is views {re.escape(str(shape))}, .*: did you pass images\\?$"
    with pytest.raises(ValueError, match=said):
        operator(net, layer, torch.rand(shape))
    with pytest.raises(ValueError, match=said):
        operator(net, layer, torch.rand(shape), chunk=2)


@pytest.mark.parametrize(
    ("net", "layer", "shape"),
    [
        (nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3), nn.Flatten()), "0", (4, 3, 6, 4)),
        (mlp((4, 3)).float(), "0", (5, 1, 4)),
        (flat(64), "1", (5, 1, 1, 8, 8)),
    ],
)
def test_nobody_else_is_asked(net: nn.Module, layer: str, shape: tuple[int, ...]) -> None:
    """Warnings are errors here."""
    assert covariance_operator(net, layer, torch.rand(shape)).population == shape[:2]
