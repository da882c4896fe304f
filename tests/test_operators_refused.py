"""What an operator refuses, in a sentence that names it: shapes, kinds, losses, un-augmented samples, outputs that are zero."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sslbook.networks import mlp
from sslbook.operators import covariance_operator, intra_operator


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
    (lambda: intra_operator(mlp((4, 2)), "0", X[0, 0]), r"views must have shape \(samples, views, ...\), got \(4,\)"),
    (lambda: covariance_operator(mlp((4, 2)), "0", X[:0]), r"got \(0, 2, 4\)"),
    (lambda: covariance_operator(mlp((4, 2)), "1", X), "layer '1' isn't in the network"),
    (
        lambda: covariance_operator(mlp((4, 2)), "0", X, loss="nce"),
        "loss must be one of simple, soft_triplet, info_nce",
    ),
    (lambda: covariance_operator(mlp((4, 2)), "0", X, loss="info_nce", tau=1.0), r"give clean=\(N, ...\) and tau"),
    (
        lambda: covariance_operator(mlp((4, 2)), "0", X, loss="info_nce", clean=X[:, 0]),
        r"give clean=\(N, ...\) and tau",
    ),
    (
        lambda: covariance_operator(mlp((4, 2)), "0", X, loss="info_nce", tau=0.0, clean=X[:, 0]),
        "tau must be above 0, got 0",
    ),
    (
        lambda: covariance_operator(mlp((4, 2)), "0", X, loss="info_nce", tau=1.0, clean=X[:2, 0]),
        "each of the 3 rows of views, got 2",
    ),
    (
        lambda: covariance_operator(mlp((4, 2)), "0", X, loss="info_nce", tau=1.0, clean=X[:, 0], beta=0.5),
        "beta has no use with loss='info_nce'",
    ),
    (
        lambda: covariance_operator(mlp((4, 2)), "0", X[..., :0]),
        r"x must have shape \(B, ...\) with at least one input",
    ),
    (
        lambda: covariance_operator(mlp((4, 2)), "0", X.to_sparse()),
        "views must be a dense torch tensor .* got sparse_coo",
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
    (
        lambda: covariance_operator(mlp((4, 3)), "0", X).top_eigenpairs(1, tol=float("nan")),
        "tol must be finite, got nan",
    ),
    (lambda: covariance_operator(mlp((4, 3)), "0", X).top_eigenpairs(1, seed=-1), "seed must be at least 0, got -1"),
    (lambda: covariance_operator(dead(), "0", X, normalize=True), "outputs that aren't zero"),
    (
        lambda: covariance_operator(dead(), "0", torch.cat([X, -X[:1]]), normalize=True),
        "outputs that aren't zero",
    ),
    (
        lambda: covariance_operator(mlp((4, 2)), "0", X, loss="info_nce", tau=1.0, clean=X.new_ones(4, 4)),
        "each of the 3 rows of views, got 4",
    ),
    (
        lambda: covariance_operator(mlp((4, 3)), "0", X).matmat(X.new_ones(12)),
        r"matrix must be \(12, k\) with a column",
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
