"""Eigenpairs by every way that leads to them, traces, and SciPy's view of an operator."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sslbook.bench.covariance import operators, population
from sslbook.networks.small import convnet, mlp
from sslbook.operator.covariance import CovarianceOperator, covariance_operator, intra_operator
from sslbook.operator.layer import Layer, vec
from sslbook.operator.view_weights import Mixing
from sslbook.stats.checks import relative_gap


def layers(net: nn.Module) -> list[str]:
    return [name for name, module in net.named_modules() if isinstance(module, Layer)]


def case(name: str) -> tuple[CovarianceOperator, int]:
    """An operator for each way to its eigenpairs, and how many to ask for."""
    _, views = population((30,), 14, 3, seed=0, dtype=torch.float64)
    clean, net = views[:, 0], mlp((30, 40, 2))
    few, image = mlp((6, 7, 4)), population((2, 6, 6), 10, 2, seed=0, dtype=torch.float64)[1]
    return {
        "dense": lambda: (covariance_operator(few, "2", views[..., :6]), 3),
        "fewer fields than weights": lambda: (covariance_operator(net, "0", views), 5),
        "the same, weighted": lambda: (covariance_operator(net, "0", views, loss="info_nce", tau=2.0, clean=clean), 5),
        "the same, beta < 0": lambda: (covariance_operator(net, "0", views, beta=-0.5), 5),
        "the same, within": lambda: (intra_operator(net, "0", views), 5),
        "indefinite": lambda: (covariance_operator(net, "0", views, beta=2.0), 5),
        "fewer weights than fields": lambda: (covariance_operator(convnet((2, 5, 6), 6, 8), "2", image), 6),
        "of low rank": lambda: (covariance_operator(net, "0", views[:13]), 30),
        "of low rank, indefinite": lambda: (covariance_operator(net, "0", views[:3], beta=0.1), 8),
        "all": lambda: (covariance_operator(mlp((3, 4, 2)), "0", views[..., :3]), 12),
    }[name]()


@pytest.mark.parametrize(
    "name",
    [
        *("dense", "fewer fields than weights", "the same, weighted", "the same, beta < 0", "the same, within"),
        *("indefinite", "fewer weights than fields", "of low rank", "of low rank, indefinite", "all"),
    ],
)
def test_eigenpairs_are_those_of_the_dense_matrix(name: str) -> None:
    op, k = case(name)
    values, vectors = torch.linalg.eigh(op.dense())
    wanted, scale = values.flip(0)[:k], float(values.abs().max())
    found = op.top_eigenpairs(k)
    assert float((found.values - wanted).abs().max()) < 1e-9 * scale
    gram = found.vectors.T @ found.vectors
    assert float((gram - torch.eye(k, dtype=torch.float64)).abs().max()) < 1e-10
    residuals = (op.dense() @ found.vectors - found.vectors * found.values).norm(dim=0)
    large = wanted.abs() > 1e-6 * scale
    assert bool(large.any())
    assert float((residuals / scale).max()) < 1e-8
    assert float(found.residuals[large].max()) < 1e-7
    assert float((found.residuals * found.values.abs() - residuals)[large].abs().max()) < 1e-11 * scale
    if float(values[-1] - values[-2]) > 1e-2 * scale:  # else the top eigenvector is one of many
        assert float((vectors[:, -1] @ found.vectors[:, 0]).abs()) == pytest.approx(1, abs=1e-8)
    shaped = found.directions(op.opened.weight.shape)
    assert torch.equal(vec(shaped[0]), found.vectors[:, 0])


@pytest.mark.parametrize("views", [3, 40])  # fewer weights than fields, and more
def test_eigenpairs_of_a_vanishing_operator(views: int) -> None:
    net = mlp((30, 20, 2))
    x = torch.randn(1, views, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = covariance_operator(net, "0", x).top_eigenpairs(4)  # one sample: nothing to compare it with
    assert float(found.values.abs().max()) == 0.0
    assert torch.allclose(found.vectors.T @ found.vectors, torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize("layer", ["0", "2"])
def test_eigenpairs_and_products_in_float32(layer: str) -> None:
    net, wide = mlp((30, 40, 2), dtype=torch.float32), mlp((30, 40, 2))
    _, views = population((30,), 14, 3, seed=0, dtype=torch.float32)
    op, double = covariance_operator(net, layer, views), covariance_operator(wide, layer, views.double())
    double.opened.weight.copy_(op.opened.weight.double())
    assert op.dtype == torch.float32
    # epsilon is 1.2e-7, and the two networks' weights differ by it
    assert relative_gap(op.dense().double(), double.dense()) < 1e-5
    found = op.top_eigenpairs(4)
    assert found.values.dtype == found.vectors.dtype == torch.float32
    assert float(found.residuals.max()) < 1e-5
    assert float((found.values - double.top_eigenpairs(4).values).abs().max() / found.values[0]) < 1e-5


def test_eigenpairs_that_cannot_be_had() -> None:
    op, _ = case("dense")
    for k in (0, 29):
        with pytest.raises(ValueError, match=f"k must be between 1 and 28, got {k}"):
            op.top_eigenpairs(k)
    skew = CovarianceOperator(op.opened, op.population, Mixing(weights=torch.rand(14, 14, dtype=torch.float64)))
    normalised = covariance_operator(
        mlp((6, 7, 4), "leaky_relu"), "2", population((6,), 4, 2, seed=0, dtype=torch.float64)[1], normalize=True
    )
    for bad in (skew, normalised):
        assert not bad.symmetric
        with pytest.raises(ValueError, match="symmetric operators; for others use to_scipy"):
            bad.top_eigenpairs(2)


def test_trace_of_a_wide_layer_and_of_a_convolution() -> None:
    """Wide enough for inner products of views; and the way that convolutions and few weights go."""
    clean, views = population((30,), 6, 2, seed=0, dtype=torch.float64)
    image = population((2, 5, 5), 6, 2, seed=0, dtype=torch.float64)
    for net, x, y in ((mlp((30, 20, 4)), clean, views), (convnet((2, 3, 4), 5, 3), *image)):
        for layer in layers(net):
            for kind, op in operators(net, layer, y, x):
                assert op.trace() == pytest.approx(float(op.dense().trace()), rel=1e-11), (layer, kind)


def test_the_bottom_is_that_of_the_dense_matrix() -> None:
    op, _ = case("indefinite")
    values = torch.linalg.eigvalsh(op.dense())
    found = op.bottom_eigenpairs(3).values.sort().values
    assert float((found - values[:3]).abs().max()) < 1e-9 * float(values.abs().max())
