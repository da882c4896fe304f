"""The covariance operator against its definition written out, and against its own dense matrix, on random networks.

Tolerances: 1e-12 for products (the bar of the project; they are sums of a few thousand terms, 2e-16 each, measured against the
operator's norm), 1e-10 where a network's output is enumerated and summed in another order.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import connection_cases as reference
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from benchmarks.covariance import population, product_error
from sslbook.networks.small import mlp
from sslbook.operator.covariance import (
    CovarianceOperator,
    EigenPairs,
    covariance_operator,
    intra_operator,
    relative_gap,
)
from sslbook.operator.layer import Layer, vec
from sslbook.operator.view_weights import Mixing, PairMixing
from sslchapters.covariance.checks import all_tuples, expected_gradient, nce_loss, simple_loss, triplet_loss
from sslchapters.instances import convnet, random_network

BAR = 1e-12


def layers(net: nn.Module) -> list[str]:
    return [name for name, module in net.named_modules() if isinstance(module, Layer)]


def operators(net: nn.Module, layer: str, views: Tensor, clean: Tensor) -> dict[str, CovarianceOperator]:
    """Every kind of operator of one layer; the l2-normalised ones only where no output is zero.

    Temperatures are the mean distance of the samples: at a fixed one, large outputs would underflow the weights.
    """
    with torch.no_grad():
        y = net(clean).flatten(1)
        alive = all(bool(f.any(dim=1).all()) for f in (y, net(views.flatten(0, 1)).flatten(1)))
    tau = float((y[:, None] - y[None]).square().sum(-1).mean()) / 2 or 1.0
    weighted: dict[str, Any] = {"loss": "info_nce", "temperature": tau, "clean": clean}
    kinds: dict[str, dict[str, Any]] = {"simple": {}, "beta < 0": {"beta": -0.7}, "beta > 0": {"beta": 0.7}}
    kinds |= {"soft_triplet": weighted | {"loss": "soft_triplet", "margin": 0.4 * tau}, "info_nce": weighted}
    if alive:
        kinds |= {"l2": {"normalize": True}, "l2, info_nce": weighted | {"temperature": 0.5, "normalize": True}}
    found = {kind: covariance_operator(net, layer, views, **options) for kind, options in kinds.items()}
    return found | {"intra": intra_operator(net, layer, views)}


def curved(seed: int = 0) -> nn.Sequential:
    """Biases, layer norm, GELU: nothing here is homogeneous."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(5, 7), nn.LayerNorm(7), nn.GELU(), nn.Linear(7, 6), nn.GELU(), nn.Linear(6, 3)
    ).double()


WIDE: dict[str, tuple[nn.Sequential, tuple[int, ...]]] = {
    "wide": (mlp((30, 20, 4)), (30,)),
    "power": (mlp((9, 8, 5), "power", power=3), (9,)),
    "conv": (convnet((2, 3, 4), 5, 3), (2, 5, 5)),
    "curved": (curved(), (5,)),
    "tokens": (nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3), nn.Flatten()).double(), (6, 4)),
}


PARTS = {"beta < 0": (1.0, 0.7), "beta > 0": (1.0, -0.7), "intra": (0.0, 1.0)}
"""How much of the covariance between samples and within them an operator has, where it isn't the first alone."""


@pytest.mark.parametrize("which", [0, 1, 2, 3, 4, 5, 8, 10, 13, *WIDE])
def test_an_operator_is_its_definition_and_its_products_and_trace_are_its_matrixs(which: int | str) -> None:
    """The definition by plain autograd and sums over pairs, which shares nothing with the library."""
    net, shape = random_network(which) if isinstance(which, int) else WIDE[which]
    clean, views = population(shape, 3, 2, seed=0, dtype=torch.float64)
    with torch.no_grad():
        y, y0 = net(views.flatten(0, 1)).flatten(1).unflatten(0, (3, 2)), net(clean).flatten(1)
    for layer in layers(net):
        k = reference.connections(net, layer, views.flatten(0, 1)).unflatten(0, (3, 2))
        for kind, op in operators(net, layer, views, clean).items():
            (inter, intra), unit, xi = PARTS.get(kind, (1.0, 0.0)), kind.startswith("l2"), None
            if "triplet" in kind or "nce" in kind:
                f = y0 / y0.norm(dim=1, keepdim=True) if unit else y0
                r = 0.5 * (f[:, None] - f[None]).square().sum(2)
                tau = 0.5 if unit else float(r.mean())
                xi = 1 / (1 + (r / tau - 0.4).exp()) if kind == "soft_triplet" else 1 / (1 + (r / tau).exp()) / tau
            wanted, dense = reference.operator(k, y, inter=inter, intra=intra, xi=xi, normalize=unit), op.dense()
            assert float((dense - wanted).norm()) <= BAR * float(k.square().sum()), (layer, kind)
            assert product_error(op) < BAR, (layer, kind)
            assert op.trace() == pytest.approx(float(dense.trace()), rel=1e-10, abs=1e-13 * float(dense.norm()))


def test_the_euler_gap_is_that_of_theorem_1() -> None:
    for net, shape, bar in ((*random_network(3, ["relu"]), (0.0, BAR)), (curved(), (5,), (0.05, 1.0))):
        views = population(shape, 4, 3, seed=0, dtype=torch.float64)[1]
        for layer in layers(net):
            assert bar[0] <= covariance_operator(net, layer, views).euler_gap() < bar[1]


@pytest.mark.parametrize(
    ("options", "enumerated"),
    [
        ({"beta": 0.6, "normalize": True}, simple_loss(0.6)),
        ({"loss": "soft_triplet"}, triplet_loss(0.5)),
        ({"loss": "info_nce", "normalize": True}, nce_loss(0.5)),
    ],
)
def test_exact_update_is_the_gradient_for_any_network(options: dict, enumerated: Any) -> None:
    """That of Theorem 4's weighted operators without augmentation, where it is exact; ``update`` warns that it isn't."""
    net, normalize = curved(), "normalize" in options
    clean, views = population((5,), 4, 3, seed=0, dtype=torch.float64)
    if "loss" in options:
        views, options = clean[:, None], options | {"temperature": 0.5, "clean": clean}
    for layer in layers(net):
        op = covariance_operator(net, layer, views, **options)
        truth = -expected_gradient(net, layer, views, enumerated, all_tuples(*views.shape[:2]), normalize=normalize)
        assert relative_gap(op.exact_update(), truth) < 1e-10
        with pytest.warns(UserWarning, match="exact_update"):
            op.update()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_what_the_cpu_gives() -> None:
    net = mlp((30, 40, 2), "leaky_relu")
    clean, views = population((30,), 14, 3, seed=0, dtype=torch.float64)
    host = {kind: op.dense() for kind, op in operators(net, "0", views, clean).items()}
    net = net.cuda()
    for kind, op in operators(net, "0", views.cuda(), clean.cuda()).items():
        assert op.device.type == "cuda"
        assert relative_gap(op.dense().cpu(), host[kind]) < 1e-10
        assert product_error(op) < BAR
        assert op.trace() == pytest.approx(float(host[kind].trace()), rel=1e-10)
    assert float(covariance_operator(net, "0", views.cuda()).top_eigenpairs(5).residuals.max()) < 1e-7


NET = mlp((30, 40, 2))
VIEWS = population((30,), 14, 3, seed=0, dtype=torch.float64)[1]
LAST: dict[str, tuple[nn.Module, str, tuple[int, ...], int]] = {
    "bias": (nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double(), "2", (5,), 4),
    "convolution": (nn.Sequential(nn.Conv2d(2, 4, 3)).double(), "0", (2, 5, 5), 5),
    "groups": (nn.Sequential(nn.Conv2d(2, 4, 3, groups=2)).double(), "0", (2, 5, 5), 3),
    "wide": (mlp((30, 9)), "0", (30,), 10),
    "wider": (mlp((80, 9)), "0", (80,), 10),
}
"""Last layers: of the leading ``k``, all but one are copies, which Lanczos' method on the whole operator would miss."""
CASES: dict[str, tuple[CovarianceOperator, int]] = {
    "dense": (covariance_operator(mlp((6, 7, 4)), "2", VIEWS[..., :6]), 3),
    "fewer fields than weights": (covariance_operator(NET, "0", VIEWS), 5),
    "the same, of few inputs": (covariance_operator(mlp((4, 60, 1)), "0", VIEWS[..., :4]), 3),
    "indefinite": (covariance_operator(NET, "0", VIEWS, beta=2.0), 5),
    "fewer weights than fields": (
        covariance_operator(convnet((2, 5, 6), 6, 8), "2", VIEWS.repeat(1, 1, 3)[..., :72].unflatten(2, (2, 6, 6))),
        6,
    ),
    "of low rank": (covariance_operator(NET, "0", VIEWS[:13]), 30),
    **{
        f"last, {name}": (covariance_operator(net, layer, population(shape, 40, 3, 0, torch.float64)[1]), k)
        for name, (net, layer, shape, k) in LAST.items()
    },
}
"""An operator for each way to its eigenpairs, and how many to ask for."""


@pytest.mark.parametrize("name", CASES)
def test_eigenpairs_are_those_of_the_dense_matrix(name: str) -> None:
    op, k = CASES[name]
    values, vectors = torch.linalg.eigh(op.dense())
    wanted, scale = values.flip(0)[:k], float(values.abs().max())
    found = op.top_eigenpairs(k)
    copies = int((values > (1 - 1e-8) * values[-1]).sum())
    assert (found.copies, "each value comes" in repr(found)) == (copies, copies > 1)
    if copies > 1 or name == "indefinite":
        torch.testing.assert_close(op.bottom_eigenpairs(2).values, values[:2], rtol=1e-8, atol=1e-12)
    assert float((found.values - wanted).abs().max()) < 1e-9 * scale
    assert torch.allclose(found.vectors.T @ found.vectors, torch.eye(k, dtype=torch.float64), atol=1e-10)
    residuals = (op.dense() @ found.vectors - found.vectors * found.values).norm(dim=0)
    large = wanted.abs() > 1e-6 * scale
    assert bool(large.any())
    assert float((residuals / scale).max()) < 1e-8
    assert float(found.residuals[large].max()) < 1e-7
    assert float((found.residuals * found.values.abs() - residuals)[large].abs().max()) < 1e-11 * scale
    if float(values[-1] - values[-2]) > 1e-2 * scale:  # else the top eigenvector is one of many
        assert float((vectors[:, -1] @ found.vectors[:, 0]).abs()) == pytest.approx(1, abs=1e-8)
    shaped = found.directions()
    assert [value for value, _ in found] == found.values.tolist()
    assert torch.equal(vec(shaped[0]), found.vectors[:, 0])
    step = torch.randn(shaped.shape[1:], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    spanned = torch.einsum("k...,k->...", shaped, (shaped * step).flatten(1).sum(1))
    assert found.share(step) == pytest.approx(float(spanned.square().sum() / step.square().sum()), abs=1e-12)
    with pytest.raises(ValueError, match="shape of the layer's weight"):
        found.share(step.reshape(step[0].numel(), len(step), 1))


@pytest.mark.parametrize("views", [3, 40])  # fewer weights than fields, and more
def test_eigenpairs_of_a_vanishing_operator(views: int) -> None:
    net, x = mlp((30, 20, 2)), population((30,), 1, views, seed=0, dtype=torch.float64)[1]
    found = covariance_operator(net, "0", x).top_eigenpairs(4)  # one sample: nothing to compare it with
    assert float(found.values.abs().max()) < 1e-13 * float(intra_operator(net, "0", x).trace())
    assert torch.allclose(found.vectors.T @ found.vectors, torch.eye(4, dtype=torch.float64))


def test_eigenpairs_in_float32() -> None:
    net = mlp((30, 40, 2), dtype=torch.float32)
    found = covariance_operator(net, "0", VIEWS.float()).top_eigenpairs(4)
    wanted = covariance_operator(net.double(), "0", VIEWS).top_eigenpairs(4)
    assert found.values.dtype == found.vectors.dtype == torch.float32
    assert float(found.residuals.max()) < 1e-5
    assert relative_gap(found.values.double(), wanted.values) < 1e-5


def test_vectors_and_views_of_numpy_are_those_of_torch() -> None:
    net, views = mlp((4, 6, 3), dtype=torch.float32), VIEWS[..., :4].float()
    op = covariance_operator(net, "0", views)
    dense, columns = op.dense(), torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    for vectors in (columns, columns[:, 0]):
        for kind in (vectors, vectors.numpy(), vectors.double()):
            torch.testing.assert_close(op @ kind, dense @ vectors, rtol=1e-4, atol=1e-6)
    for array in (views.double().numpy(), views.numpy()[:, ::-1][:, ::-1]):
        assert torch.equal(covariance_operator(net, "0", array).dense(), dense)
    pairs = [{"loss": "info_nce", "temperature": 0.5, "clean": x[:, 0]} for x in (views, views.numpy())]
    assert torch.equal(*(covariance_operator(net, "0", views, **given).dense() for given in pairs))


def test_one_view_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="one view of each sample") as told:
        intra_operator(mlp((4, 6, 3)), "0", VIEWS[:, :1, :4])
    assert told[0].filename == __file__


@pytest.mark.parametrize("which", ["wide", "conv"])
def test_an_estimated_trace_is_right_on_average_and_knows_its_error(which: str) -> None:
    net, shape = WIDE[which]
    clean, views = population(shape, 5, 2, seed=0, dtype=torch.float64)
    for kind, op in operators(net, layers(net)[0], views, clean).items():
        exact = op.trace()
        assert exact.error == 0
        found = [op.trace(samples=9, seed=seed) for seed in range(60)]
        values, errors = (torch.tensor(part, dtype=torch.float64) for part in (found, [each.error for each in found]))
        assert float((values.mean() - exact).abs()) <= 4 * float(values.std()) / 60**0.5 + 1e-12 * abs(exact), kind
        if float(values.std()) > 1e-9 * abs(exact):
            assert 0.5 < float(errors.square().mean().sqrt() / values.std()) < 2, kind
        assert op.trace(samples=10**9) == exact


def test_an_operator_of_low_rank_has_its_trace_from_a_few_products() -> None:
    net, views = mlp((30, 20, 2)), population((30,), 3, 2, seed=0, dtype=torch.float64)[1]
    op = covariance_operator(net, "0", views)  # two means, two outputs: at most 4 directions
    found = op.trace(samples=15)
    assert found == pytest.approx(op.trace(), rel=1e-9)
    assert found.error < 1e-9 * found


def test_eigenpairs_show_themselves() -> None:
    """In short; and the inputs that each turns on most, as pictures: those of a rank-one direction are its own factor."""
    pattern = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    direction = torch.outer(torch.tensor([1.0, -2.0], dtype=torch.float64), pattern.flatten())
    for shape, image in (((2, 12), (3, 2, 2)), ((2, 3, 2, 2), None)):
        pairs = EigenPairs(torch.ones(1), vec(direction)[:, None], torch.full((1,), 1e-9), shape)
        assert repr(pairs) == "EigenPairs(values 1; largest residual 1.0e-09)"
        (axes,) = pairs.plot(image).axes
        shown = torch.as_tensor(axes.images[0].get_array()) - 0.5
        cosine = torch.nn.functional.cosine_similarity(shown.flatten(), pattern.permute(1, 2, 0).flatten(), dim=0)
        assert abs(float(cosine)) == pytest.approx(1)


def test_weights_that_are_symmetric_but_for_rounding_have_eigenpairs() -> None:
    """Another processor may round the two entries of a pair otherwise; what it refuses must not depend on that."""
    xi, above, eps = weights(14, 0), torch.ones(14, 14).triu(1), torch.finfo(torch.float64).eps
    rounded, skew = (xi * (1 + by * above) for by in (4 * eps, 1e-3))
    op, _ = CASES["fewer fields than weights"]
    plain, found = (replace(op, mixing=Mixing(weights=w)).top_eigenpairs(3) for w in (xi, rounded))
    assert relative_gap(found.values, plain.values) < 100 * eps
    for mixing in (lambda w: Mixing(weights=w), PairMixing):
        assert [replace(op, mixing=mixing(w)).symmetric for w in (xi, rounded, skew)] == [True, True, False]


def weights(n: int, seed: int, *, symmetric: bool = True) -> Tensor:
    xi = torch.rand(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return xi + xi.T if symmetric else xi


def applied(mixing: Mixing | PairMixing, n: int, v: int, *, transposed: bool = False) -> Tensor:
    eye = torch.eye(n * v, dtype=torch.float64).reshape(n, v, n * v)
    return mixing(eye, transposed=transposed).reshape(n * v, n * v)


@given(st.integers(1, 6), st.integers(1, 6), st.floats(0, 2), st.floats(0, 2), st.booleans(), st.integers(1, 6))
@settings(deadline=None)
def test_the_root_squares_to_it(n: int, v: int, inter: float, intra: float, weighted: bool, seed: int) -> None:
    mixing = Mixing(inter, intra, weights(n, seed) if weighted else None)
    root = mixing.root(n, v)
    half = applied(root, n, v)
    assert float((half - half.T).abs().max()) < 1e-12
    assert float((half @ half - applied(mixing, n, v)).abs().max()) < 1e-12


def test_a_common_part_and_a_sample_with_itself_bring_no_rounding() -> None:
    """Both drop out of ``C u``; left in, they would cost ten and six digits here."""
    xi = weights(5, 0) * 1e-6 + 1e6 * torch.eye(5, dtype=torch.float64)
    off = xi - torch.diag(xi.diagonal())
    u = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for field, mixing in ((u, Mixing(weights=xi)), (u + 1e6, Mixing(weights=off))):
        mean = field.mean(1)
        wanted = (off[:, :, None] * (mean[:, None] - mean[None])).sum(1)[:, None] / 50
        assert float((mixing(field) - wanted).norm() / wanted.norm()) < 1e-13


def test_transposes_and_the_roots_that_there_are() -> None:
    """Skew weights are those of one tower and several negatives (Eq. 80)."""
    a, skew = weights(6, 0, symmetric=False), Mixing(weights=weights(3, 0, symmetric=False))
    assert torch.allclose(applied(PairMixing(a), 3, 2), a)
    for mixing in (PairMixing(a), skew):
        assert torch.allclose(applied(mixing, 3, 2, transposed=True), applied(mixing, 3, 2).T, atol=1e-15)
    for rows in (a, a[:, :2]):  # of full rank, and not
        half = PairMixing(rows @ rows.T).root(3, 2)
        assert float((half.matrix @ half.matrix - rows @ rows.T).abs().max()) < 1e-12
    negative = torch.diag(torch.tensor([-1.0, 1, 2, 3, 4, 5], dtype=torch.float64))
    none = [
        PairMixing(a),
        PairMixing(negative),
        Mixing(intra=-0.1),
        Mixing(-1.0),
        skew,
        Mixing(weights=-weights(3, 0) / 99),
    ]
    assert all(mixing.root(3, 2) is None for mixing in none)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_with_every_kind_of_vector(dtype: torch.dtype) -> None:
    views, real = VIEWS[:8, :, :6].to(dtype), np.random.default_rng(0).standard_normal((48, 3))
    op = covariance_operator(mlp((6, 8, 3), "leaky_relu", dtype=dtype), "0", views, normalize=dtype == torch.float64)
    linear, dense, first = op.to_scipy(), op.dense().numpy(), real[:, 0]
    for vector in ((4 * first).round().astype(">i4"), first.astype("f2"), real[::-1, ::-1], real[:, :1]):
        for one, matrix in ((linear, dense), (linear.T, dense.T)):
            found, wanted = one @ vector, matrix @ np.asarray(vector, "f8")
            assert (found.dtype, found.shape) == (dense.dtype, wanted.shape)
            assert np.abs(found - wanted).max() <= (BAR if dtype == torch.float64 else 1e-5) * np.abs(wanted).max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_the_same_weights_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    parts = nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.GELU(), nn.Conv2d(6, 8, 3, stride=2), nn.ReLU()
    net = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval().to(dtype)
    if dtype == torch.float16:
        net[1].float()
    clean, views = (part.to(dtype) for part in population((3, 9, 9), 5, 2, seed=0, dtype=torch.float32))
    asked: dict[str, Any] = {"loss": "info_nce", "temperature": 0.5, "normalize": True}
    found = covariance_operator(net, "3", views, clean=clean, **asked)
    whole = covariance_operator(copy.deepcopy(net).float(), "3", views.float(), clean=clean.float(), **asked)
    assert torch.equal(found.dense(), whole.dense())
    assert f"torch.float32 of weights given in {dtype}" in repr(found)
    assert net[3].weight.dtype == dtype
