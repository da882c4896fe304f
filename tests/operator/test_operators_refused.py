"""What an operator refuses, in a sentence that names it: shapes, kinds, losses, un-augmented samples, outputs that are zero."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslbook.networks.small import mlp
from sslbook.operator.covariance import covariance_operator, intra_operator


def dead() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU()).double()
    nn.init.constant_(net[0].weight, -1.0)
    return net


class Nothing(nn.Module):
    """No output is left."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :0]


def shy() -> nn.Sequential:
    """It answers what is positive."""
    net = nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU()).double()
    nn.init.constant_(net[0].weight, 1.0)
    return net


X = torch.ones(3, 2, 4, dtype=torch.float64)
Call = Callable[[], object]
BAD: list[tuple[Call, str]] = [
    (
        lambda: covariance_operator(mlp((4, 2)), "0", X[0]),
        r"views must have shape \(samples, views, ...\), got \(2, 4\)",
    ),
    (lambda: covariance_operator(mlp((4, 2)), "0", X, loss="info_nce", tau=1.0), r"give clean=\(N, ...\) and tau"),
    (
        lambda: covariance_operator(mlp((4, 2)), "0", X, loss="info_nce", tau=1.0, clean=X[:, 0], beta=0.5),
        "beta has no use with loss='info_nce'",
    ),
    (
        lambda: covariance_operator(mlp((4, 2)), "0", X[..., :0]),
        r"x must have shape \(B, ...\) with at least one input",
    ),
    (
        lambda: covariance_operator(nn.Sequential(nn.Linear(4, 2), Nothing()).double(), "0", X),
        "must hold numbers, got the shape",
    ),
    (
        lambda: covariance_operator(
            mlp((4, 2)), "0", X, loss="info_nce", tau=1.0, clean=torch.full((3, 4), torch.inf, dtype=X.dtype)
        ),
        "clean must be finite numbers",
    ),
    (
        lambda: covariance_operator(mlp((4, 2)), "0", X, loss="info_nce", tau=1.0, clean=X[:, 0].float()),
        r"such as those of views, got \(4,\) in torch.float64 on cpu and \(4,\) in torch.float32 on cpu",
    ),
    (
        lambda: covariance_operator(
            shy(), "0", X, loss="info_nce", tau=1.0, clean=torch.cat([X[:2, 0], -X[:1, 0]]), normalize=True
        ),
        "outputs that aren't zero: that of at least one clean sample is",
    ),
    (lambda: covariance_operator(dead(), "0", X, normalize=True), "outputs that aren't zero"),
    (
        lambda: covariance_operator(dead(), "0", torch.cat([X, -X[:1]]), normalize=True),
        "outputs that aren't zero",
    ),
    (
        lambda: covariance_operator(mlp((4, 3)), "0", X).matmat(X.new_ones(12, 0)),
        r"matrix must be \(12, k\) with a column",
    ),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input(call: Call, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


# -- images in place of views ----------------------------------------------------------------------------------------------


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


def conv(channels: int, *below: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        *below, nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )


OPERATORS = pytest.mark.parametrize("operator", [covariance_operator, intra_operator])


@OPERATORS
@pytest.mark.parametrize(
    ("net", "layer", "shape", "said"),
    [
        (flat(64), "1", (8, 3, 8, 8), "3 views each of (8, 8): did you pass images?"),
        (
            flat(64),
            "3",
            (8, 1, 8, 8),
            "1 view each of (8, 8), so that nothing is augmented (a plain PCA): did you pass images?",
        ),
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
        (nn.Linear(64, 2), "", (8, 1, 8, 8)),
        (conv(3), "0", (8, 3, 8, 8)),
        (conv(1), "0", (8, 1, 8, 8)),
        (conv(3, nn.BatchNorm2d(3)).eval(), "1", (8, 3, 8, 8)),
        (Image(), "head", (8, 3, 8, 8)),
        (flat(64), "1", (8, 8, 8)),
    ],
    ids=["flattened", "a row at a time", "colours", "grey", "batch norm", "asserted", "no channels"],
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
