"""The covariance operator against its definition written out, and against its own dense matrix, on random networks.

Tolerances: 1e-12 for products (the bar of the project; they are sums of a few thousand terms, 2e-16 each, measured against the
operator's norm), 1e-10 where a network's output is enumerated and summed in another order.
"""

from __future__ import annotations

import re

import connection_cases as reference
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sslbook.bench.covariance import operators, population, product_error
from sslbook.experiments.covariance.checks import all_tuples, expected_gradient, nce_loss, simple_loss, triplet_loss
from sslbook.experiments.dual_networks.checks import degree
from sslbook.networks.small import convnet, mlp, random_network
from sslbook.operator.covariance import (
    CovarianceOperator,
    EigenPairs,
    covariance_operator,
    intra_operator,
    pair_weights,
)
from sslbook.operator.layer import Layer, open_layer, vec
from sslbook.operator.view_weights import Mixing, PairMixing
from sslbook.stats.checks import relative_gap

BAR = 1e-12
KINDS = ("simple", "beta < 0", "beta > 0", "intra", "soft_triplet", "info_nce", "l2", "l2, info_nce")


def layers(net: nn.Module) -> list[str]:
    return [name for name, module in net.named_modules() if isinstance(module, Layer)]


def curved(seed: int = 0) -> nn.Sequential:
    """Biases, layer norm, GELU: nothing here is homogeneous."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(5, 7), nn.LayerNorm(7), nn.GELU(), nn.Linear(7, 6), nn.GELU(), nn.Linear(6, 3)
    ).double()


# -- the bar: matrix-free = dense, every layer, every kind ----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_products_are_those_of_the_dense_matrix(seed: int) -> None:
    net, shape = random_network(seed)
    clean, views = population(shape, 4, 3, seed=seed, dtype=torch.float64)
    for layer in layers(net):
        for kind, op in operators(net, layer, views, clean):
            assert product_error(op) < BAR, (layer, kind)


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (mlp((50, 60, 50, 3)), (50,)),
        (mlp((30, 40, 5), "power", power=3), (30,)),
        (convnet((3, 12, 16), 6, 8), (3, 6, 6)),
        (curved(), (5,)),
    ],
    ids=["wide", "power", "conv", "curved"],
)
def test_products_in_wide_layers(net: nn.Sequential, shape: tuple[int, ...]) -> None:
    clean, views = population(shape, 5, 2, seed=0, dtype=torch.float64)
    sizes = [module.weight.numel() for module in net.modules() if isinstance(module, Layer)]
    assert max(sizes) <= 3000
    layer = layers(net)[int(np.argmax(sizes))]
    seen = {kind: product_error(op) for kind, op in operators(net, layer, views, clean)}
    assert set(seen) == set(KINDS)
    assert max(seen.values()) < BAR, seen


@pytest.mark.parametrize("seed", range(0, 20, 2))
def test_the_dense_matrix_is_the_definition(seed: int) -> None:
    """An answer by plain autograd and sums over pairs, which shares nothing with the library."""
    net, shape = random_network(seed)
    clean, views = population(shape, 3, 2, seed=seed, dtype=torch.float64)
    with torch.no_grad():
        y, y0 = net(views.flatten(0, 1)).flatten(1), net(clean).flatten(1)
    parts = {
        "simple": (1.0, 0.0),
        "beta < 0": (1.0, 0.7),
        "beta > 0": (1.0, -0.7),
        "intra": (0.0, 1.0),
        "l2": (1.0, 0.0),
    }

    def weight(kind: str) -> Tensor | None:
        if "triplet" not in kind and "nce" not in kind:
            return None
        f = y0 / y0.norm(dim=1, keepdim=True) if kind.startswith("l2") else y0
        r = 0.5 * (f[:, None] - f[None]).square().sum(2)
        tau = 0.5 if kind.startswith("l2") else float(r.mean())
        return 1 / (1 + (r / tau - 0.4).exp()) if kind == "soft_triplet" else 1 / (1 + (r / tau).exp()) / tau

    for layer in layers(net):
        k = reference.connections(net, layer, views.flatten(0, 1)).unflatten(0, (3, 2))
        for kind, op in operators(net, layer, views, clean):
            inter, intra = parts.get(kind, (1.0, 0.0))
            wanted = reference.operator(
                k, y.unflatten(0, (3, 2)), inter=inter, intra=intra, xi=weight(kind), normalize=kind.startswith("l2")
            )
            assert float((op.dense() - wanted).norm()) <= BAR * float(k.square().sum()), (layer, kind)


def test_the_reference_tells_variants_apart() -> None:
    """The bar would be worth nothing if any of the kinds were another in disguise."""
    net, shape = mlp((4, 6, 3), "leaky_relu"), (4,)
    clean, views = population(shape, 4, 3, seed=0, dtype=torch.float64)
    dense = {kind: op.dense() for kind, op in operators(net, "0", views, clean)}
    assert set(dense) == set(KINDS)
    for kind, a in dense.items():
        for other, b in dense.items():
            assert kind == other or float((a - b).norm() / a.norm()) > 0.05, (kind, other)


# -- identities ------------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000), kind=st.integers(0, 7))
@settings(max_examples=40, deadline=None)
def test_linear_adjoint_and_traced(seed: int, kind: int) -> None:
    net, shape = random_network(seed % 300)
    clean, views = population(shape, 4, 2, seed=seed, dtype=torch.float64)
    layer = layers(net)[seed % len(layers(net))]
    found = dict(operators(net, layer, views, clean))
    op = found.get(KINDS[kind], found["simple"])
    draw = torch.Generator().manual_seed(seed)
    u, v = torch.randn(2, *op.opened.weight.shape, generator=draw, dtype=torch.float64)
    size = float(op.opened.connections().square().sum()) * (1 + float(u.norm())) * (1 + float(v.norm()))
    if op.normalize:
        size /= min(1.0, float(op.opened.output.norm(dim=1).min()) ** 2)
    assert abs(float((op.apply(u) * v).sum() - (u * op.apply_transpose(v)).sum())) <= BAR * size
    assert float((op.apply(u - 2 * v) - op.apply(u) + 2 * op.apply(v)).norm()) <= BAR * size
    assert abs(op.trace() - float(op.dense().trace())) <= BAR * size
    if op.symmetric:
        assert float((op.dense() - op.dense().T).abs().max()) <= BAR * size
    both = op.apply(torch.stack([u, v]))
    assert float((both[0] - op.apply(u)).norm() + (both[1] - op.apply(v)).norm()) <= BAR * size
    assert float((op.matvec(vec(u)) - vec(op.apply(u))).norm()) <= BAR * size
    matrix = torch.stack([vec(u), vec(v)], 1)
    assert float((op.matmat(matrix) - torch.stack([vec(op.apply(u)), vec(op.apply(v))], 1)).norm()) <= BAR * size


@pytest.mark.parametrize("beta", [0.0, -0.3, -2.0])
def test_positive_for_beta_at_most_zero(beta: float) -> None:
    for seed in range(12):
        net, shape = random_network(seed)
        _, views = population(shape, 4, 3, seed=seed, dtype=torch.float64)
        for layer in layers(net):
            values = torch.linalg.eigvalsh(covariance_operator(net, layer, views, beta=beta).dense())
            assert float(values[0]) >= -1e-13 * float(values[-1])  # rounding of a zero eigenvalue


def test_indefinite_for_beta_above_zero_and_positive_when_weighted() -> None:
    net = mlp((4, 6, 3), "leaky_relu")
    clean, views = population((4,), 4, 3, seed=0, dtype=torch.float64)
    values = torch.linalg.eigvalsh(covariance_operator(net, "0", views, beta=1.0).dense())
    assert float(values[0]) < -0.05 * float(values[-1]) < 0
    for loss in ("soft_triplet", "info_nce"):
        values = torch.linalg.eigvalsh(
            covariance_operator(net, "0", views, loss=loss, temperature=0.5, clean=clean).dense()
        )
        assert float(values[0]) >= -1e-13 * float(values[-1])


def test_normalised_outputs_leave_no_step_along_the_weights() -> None:
    r""":math:`W^T K_a P^\perp_{f_a} = f_a^T P^\perp_{f_a} = 0`; not so for the plain operator, nor for ``OP`` on the weights."""
    for seed in range(12):
        net, shape = random_network(seed, ["linear", "leaky_relu", "conv"])
        _, views = population(shape, 4, 3, seed=seed, dtype=torch.float64)
        if not bool(net(views.flatten(0, 1)).any(dim=1).all()):
            continue
        for layer in layers(net):
            op, plain = covariance_operator(net, layer, views, normalize=True), covariance_operator(net, layer, views)
            along, size = vec(op.opened.weight), float(op.dense().norm())
            assert float(op.rmatvec(along).norm()) <= 1e-10 * size * float(along.norm())
            assert float(op.matvec(along).norm()) > 1e-3 * size * float(along.norm())
            assert float(plain.rmatvec(along).norm()) > 1e-3 * float(plain.dense().norm() * along.norm())


def test_the_transpose_of_an_operator_with_skew_weights() -> None:
    """One tower and several negatives (Eq. 80): ``xi`` isn't symmetric."""
    _, views = population((4,), 5, 2, seed=0, dtype=torch.float64)
    xi = torch.rand(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    opened = open_layer(mlp((4, 6, 3)), "0", views.flatten(0, 1))
    op = CovarianceOperator(opened, (5, 2), Mixing(weights=xi))
    assert product_error(op) < BAR
    assert relative_gap(op.dense().T, op.dense()) > 0.05


def test_euler_gap() -> None:
    for kind in ("relu", "power"):
        net, shape = random_network(3, [kind])
        _, views = population(shape, 4, 3, seed=0, dtype=torch.float64)
        for layer in layers(net):
            op = covariance_operator(net, layer, views)
            assert op.euler_gap(degree(net, int(layer))) < BAR
            assert relative_gap(op.apply(op.opened.weight), degree(net, int(layer)) * op.exact_update()) < 1e-11
    _, views = population((5,), 4, 3, seed=0, dtype=torch.float64)
    assert all(covariance_operator(curved(), layer, views).euler_gap() > 0.05 for layer in ("0", "3", "5"))


@pytest.mark.parametrize("layer", ["0", "3", "5"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("beta", [0.0, -0.8, 0.6])
def test_exact_update_is_the_gradient_for_any_network(layer: str, normalize: bool, beta: float) -> None:
    net = curved()
    _, views = population((5,), 4, 3, seed=0, dtype=torch.float64)
    op = covariance_operator(net, layer, views, beta=beta, normalize=normalize)
    truth = -expected_gradient(net, layer, views, simple_loss(beta), all_tuples(4, 3), normalize=normalize)
    assert relative_gap(op.exact_update(), truth) < 1e-10
    if layer != "5" or normalize:  # at the top the bias drops out of every difference
        with pytest.warns(UserWarning, match="exact_update"):
            assert relative_gap(op.update(), truth) > 1e-2


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("loss", ["soft_triplet", "info_nce"])
def test_exact_update_of_weighted_operators(loss: str, normalize: bool) -> None:
    """Theorem 4 without augmentation, where it is exact."""
    net = curved()
    clean, _ = population((5,), 5, 1, seed=0, dtype=torch.float64)
    views = clean[:, None]
    op = covariance_operator(net, "3", views, loss=loss, temperature=0.5, clean=clean, normalize=normalize)
    enumerated = {"soft_triplet": triplet_loss(0.5), "info_nce": nce_loss(0.5)}[loss]
    truth = -expected_gradient(net, "3", views, enumerated, all_tuples(5, 1), normalize=normalize)
    assert relative_gap(op.exact_update(), truth) < 1e-10
    assert relative_gap(covariance_operator(net, "3", views, normalize=normalize).exact_update(), truth) > 1e-2


def test_views_of_one_sample_are_averaged_first() -> None:
    """Repeating views changes nothing; an operator of views taken for samples is another one."""
    net = mlp((4, 6, 3))
    _, views = population((4,), 4, 3, seed=0, dtype=torch.float64)
    dense = covariance_operator(net, "2", views).dense()
    assert relative_gap(covariance_operator(net, "2", views.repeat(1, 2, 1)).dense(), dense) < BAR
    assert relative_gap(covariance_operator(net, "2", views.flatten(0, 1)[:, None]).dense(), dense) > 0.1
    total = covariance_operator(net, "2", views, beta=-1.0).dense()  # VE + EV is the variance of all views
    assert relative_gap(covariance_operator(net, "2", views.flatten(0, 1)[:, None]).dense(), total) < BAR


# -- a device -----------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_what_the_cpu_gives() -> None:
    net = mlp((30, 40, 2), "leaky_relu")
    clean, views = population((30,), 14, 3, seed=0, dtype=torch.float64)
    host = {kind: op.dense() for kind, op in operators(net, "0", views, clean)}
    values = covariance_operator(net, "0", views).top_eigenpairs(5).values
    net = net.cuda()
    for kind, op in operators(net, "0", views.cuda(), clean.cuda()):
        assert op.device.type == "cuda"
        assert relative_gap(op.dense().cpu(), host[kind]) < 1e-10
        assert product_error(op) < BAR
        assert op.trace() == pytest.approx(float(host[kind].trace()), rel=1e-10)
    found = covariance_operator(net, "0", views.cuda()).top_eigenpairs(5)
    assert relative_gap(found.values.cpu(), values) < 1e-8
    assert float(found.residuals.max()) < 1e-7


X = torch.ones(3, 2, 4, dtype=torch.float64)


def test_pair_weights() -> None:
    net, clean = mlp((4, 3)), torch.eye(4, dtype=torch.float64)
    xi = pair_weights(net, clean, loss="info_nce", temperature=0.5)
    y = net(clean).detach()
    r = 0.5 * torch.cdist(y, y) ** 2
    assert torch.allclose(xi, 2 / (1 + (2 * r).exp()))
    unit = y / y.norm(dim=1, keepdim=True)
    xi = pair_weights(net, clean, loss="soft_triplet", temperature=0.5, margin=0.1, normalize=True)
    assert torch.allclose(xi, 1 / (1 + (2 * (1 - unit @ unit.T - 0.1)).exp()))


def test_tokens_share_a_weight() -> None:
    """Where a layer is applied to every token of a sample its operator is that of their sum, and the update warns its caller."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3), nn.Flatten()).double()
    op = covariance_operator(net, "0", population((6, 4), 3, 2, seed=0, dtype=torch.float64)[1])
    assert op.trace() == pytest.approx(float(op.dense().trace()), rel=1e-11)
    with pytest.warns(UserWarning, match="exact_update") as told:
        op.update()
    assert told[0].filename == __file__


# --- eigenpairs and traces, by every way that leads to them ----------------------------------------------------------


def case(name: str) -> tuple[CovarianceOperator, int]:
    """An operator for each way to its eigenpairs, and how many to ask for."""
    _, views = population((30,), 14, 3, seed=0, dtype=torch.float64)
    clean, net = views[:, 0], mlp((30, 40, 2))
    few, image = mlp((6, 7, 4)), population((2, 6, 6), 10, 2, seed=0, dtype=torch.float64)[1]
    return {
        "dense": lambda: (covariance_operator(few, "2", views[..., :6]), 3),
        "fewer fields than weights": lambda: (covariance_operator(net, "0", views), 5),
        "the same, weighted": lambda: (
            covariance_operator(net, "0", views, loss="info_nce", temperature=2.0, clean=clean),
            5,
        ),
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
    shaped = found.directions()
    assert torch.equal(vec(shaped[0]), found.vectors[:, 0])
    step = torch.randn(shaped.shape[1:], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    spanned = torch.einsum("k...,k->...", shaped, (shaped * step).flatten(1).sum(1))
    assert found.share(step) == pytest.approx(float(spanned.square().sum() / step.square().sum()), abs=1e-12)
    for call in (found.directions, found.plot, lambda shape: found.share(step.reshape(shape))):
        with pytest.raises(ValueError, match="shape of the layer's weight"):
            call((step[0].numel(), len(step), 1))


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


def test_eigenpairs_show_themselves() -> None:
    """In short; and the inputs that each turns on most, as pictures: those of a rank-one direction are its own factor."""
    pattern = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    direction = torch.outer(torch.tensor([1.0, -2.0], dtype=torch.float64), pattern.flatten())
    pairs = EigenPairs(torch.ones(1), vec(direction)[:, None], torch.full((1,), 1e-9))
    assert repr(pairs) == "EigenPairs(values 1; largest residual 1.0e-09)"
    for shape, image in ((torch.Size((2, 12)), (3, 2, 2)), (torch.Size((2, 3, 2, 2)), None)):
        (axes,) = pairs.plot(shape, image).axes
        shown = torch.as_tensor(axes.images[0].get_array()) - 0.5
        cosine = torch.nn.functional.cosine_similarity(shown.flatten(), pattern.permute(1, 2, 0).flatten(), dim=0)
        assert abs(float(cosine)) == pytest.approx(1)
    with pytest.raises(ValueError, match=re.escape("give image=(C, H, W)")):
        pairs.plot((2, 12))


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


# --- the mixing of views against the matrix that it stands for, its transpose and its root ---------------------------


sizes = st.integers(1, 6)
factors = st.floats(-2, 2)


def weights(n: int, seed: int, *, symmetric: bool = True) -> Tensor:
    xi = torch.rand(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return xi + xi.T if symmetric else xi


def matrix(mixing: Mixing, n: int, v: int) -> Tensor:
    """``C`` by its formula, entry by entry."""
    c = torch.zeros(n, v, n, v, dtype=torch.float64)
    for i in range(n):
        for a in range(v):
            for j in range(n):
                xi = 1.0 if mixing.weights is None else mixing.weights[i, j]
                c[i, a, i, :] += mixing.inter * xi / (n**2 * v * v)
                c[i, a, j, :] -= mixing.inter * xi / (n**2 * v * v)
            c[i, a, i, a] += mixing.intra / (n * v)
            c[i, a, i, :] -= mixing.intra / (n * v * v)
    return c.reshape(n * v, n * v)


def applied(mixing: Mixing, n: int, v: int, *, adjoint: bool = False) -> Tensor:
    eye = torch.eye(n * v, dtype=torch.float64).reshape(n, v, n * v)
    return mixing(eye, adjoint=adjoint).reshape(n * v, n * v)


@given(n=sizes, v=sizes, inter=factors, intra=factors, kind=st.sampled_from(["none", "even", "skew"]), seed=sizes)
@settings(deadline=None)
def test_it_is_its_matrix(n: int, v: int, inter: float, intra: float, kind: str, seed: int) -> None:
    xi = None if kind == "none" else weights(n, seed, symmetric=kind == "even")
    mixing = Mixing(inter, intra, xi)
    c = matrix(mixing, n, v)
    # entries are at most 4 and sums have at most 36 terms: 1e-14 is a few dozen units of rounding
    assert float((applied(mixing, n, v) - c).abs().max()) < 1e-14
    assert float((applied(mixing, n, v, adjoint=True) - c.T).abs().max()) < 1e-14
    assert float((applied(-mixing, n, v) + c).abs().max()) < 1e-14
    assert mixing.symmetric == (kind != "skew" or n == 1)


@given(n=sizes, v=sizes, inter=st.floats(0, 2), intra=st.floats(0, 2), weighted=st.booleans(), seed=sizes)
@settings(deadline=None)
def test_the_root_squares_to_it(n: int, v: int, inter: float, intra: float, weighted: bool, seed: int) -> None:
    mixing = Mixing(inter, intra, weights(n, seed) if weighted else None)
    root = mixing.root(n, v)
    assert root is not None
    half = applied(root, n, v)
    assert float((half - half.T).abs().max()) < 1e-12
    assert float((half @ half - matrix(mixing, n, v)).abs().max()) < 1e-12


def test_no_root_without_positivity() -> None:
    assert Mixing(intra=-0.1).root(3, 2) is None
    assert Mixing(inter=-1.0).root(3, 2) is None
    assert Mixing(weights=weights(3, 0, symmetric=False)).root(3, 2) is None
    assert Mixing(weights=-weights(3, 0)).root(3, 2) is None


def test_a_common_part_and_a_sample_with_itself_bring_no_rounding() -> None:
    """Both drop out of ``C u``; left in, they would cost ten and six digits here."""
    xi = weights(5, 0) * 1e-6 + 1e6 * torch.eye(5, dtype=torch.float64)
    off = xi - torch.diag(xi.diagonal())
    u = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for field, mixing in ((u, Mixing(weights=xi)), (u + 1e6, Mixing(weights=off))):
        mean = field.mean(1)
        wanted = (off[:, :, None] * (mean[:, None] - mean[None])).sum(1)[:, None] / 50
        assert float((mixing(field) - wanted).norm() / wanted.norm()) < 1e-13


def test_any_matrix_its_transpose_and_its_root() -> None:
    g = torch.Generator().manual_seed(0)
    a, u = (torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((6, 6), (3, 2, 4)))
    assert torch.allclose(PairMixing(a)(u).flatten(0, 1), a @ u.flatten(0, 1))
    assert torch.allclose(PairMixing(a)(u, adjoint=True).flatten(0, 1), a.T @ u.flatten(0, 1))
    for rows in (a, a[:, :2]):  # of full rank, and not
        whole = 0.5 * (rows @ rows.T + (rows @ rows.T).T)
        half = PairMixing(whole).root(3, 2)
        assert half is not None
        assert float((half.matrix @ half.matrix - whole).abs().max()) < 1e-12
    negative = torch.diag(torch.tensor([-1.0, 1, 2, 3, 4, 5], dtype=torch.float64))
    assert PairMixing(a).root(3, 2) is None
    assert PairMixing(negative).root(3, 2) is None
