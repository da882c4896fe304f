"""The connection against plain autograd in the weight, on layers and networks of every kind.

Tolerance 1e-12: both sides are sums of at most a thousand products in float64 (epsilon 2e-16), without cancellation worth
speaking of, since errors are measured against the largest item of the batch.
"""

from __future__ import annotations

import connection_cases as reference
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sslbook.networks.small import initialize, mlp, random_network
from sslbook.operator.layer import Layer, connection, open_layer, unvec, vec
from sslbook.stats.checks import relative_gap

TOL = 1e-12


def build(name: str, dtype: torch.dtype = torch.float64, batch: int = 3) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    make, shape = reference.NETS[name]
    net = make().to(dtype).eval()
    return net, torch.randn(batch, *shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


def layers(net: nn.Module) -> list[str]:
    """Those that are called as modules: attention reads its output projection's weight by itself."""
    return [name for name, m in net.named_modules() if isinstance(m, Layer) and not name.endswith("out_proj")]


@pytest.mark.parametrize("name", reference.NETS)
def test_every_product_is_that_of_the_plain_jacobian(name: str) -> None:
    net, x = build(name)
    draw = torch.Generator().manual_seed(2)
    assert layers(net)
    for layer in layers(net):
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
        assert relative_gap(opened.kernel(cotangents[0]), torch.einsum("ano,bnp,bp->ao", k, k, cotangents[0])) < TOL
        each = torch.einsum("bno,bo->bn", k, cotangents[0])
        assert relative_gap(opened.sample_gradients(cotangents[0]), each) < TOL
        assert opened.jacobian().shape == (3, *opened.output.shape[1:], opened.preactivation[0].numel())


@pytest.mark.parametrize("wide", [True, False])
def test_the_kernel_through_inner_products_is_the_one_through_the_weights(wide: bool) -> None:
    net = mlp((40, 9, 4)) if wide else mlp((4, 9, 4))
    x = torch.randn(20, 40 if wide else 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    opened = open_layer(net, "0", x)
    cotangent = opened.output.cos()
    assert relative_gap(opened.kernel(cotangent), opened.jvp(opened.vjp(cotangent))) < TOL


@given(
    channels=st.tuples(*[st.integers(1, 3)] * 3),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    grouped=st.booleans(),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=30, deadline=None)
def test_convolutions_of_every_geometry(
    channels: tuple[int, int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    grouped: bool,
    seed: int,
) -> None:
    a, b, c = channels
    groups = b if grouped else 1
    upper = nn.Conv2d(b, c * groups, kernel, stride, padding, dilation, groups)
    net = nn.Sequential(nn.Conv2d(a, b, 2, padding=1), nn.Tanh(), upper, nn.Flatten()).double()
    initialize(net, seed)
    x = torch.randn(2, a, 5, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for layer in ("0", "2"):
        opened = open_layer(net, layer, x)
        k = reference.connections(net, layer, x)
        assert relative_gap(opened.connections(), k) < TOL
        assert relative_gap(opened.jvp(opened.weight), k.mT @ vec(opened.weight)) < TOL


@given(seed=st.integers(0, 10_000), scale=st.floats(-3, 3))
@settings(max_examples=30, deadline=None)
def test_products_are_linear_and_adjoint(seed: int, scale: float) -> None:
    net, shape = random_network(seed % 200)
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(4, *shape, generator=draw, dtype=torch.float64)
    for layer in layers(net):
        opened = open_layer(net, layer, x)
        a, b = torch.randn(2, *opened.weight.shape, generator=draw, dtype=torch.float64)
        c = torch.randn(opened.output.shape, generator=draw, dtype=torch.float64)
        size = float(opened.connections().norm())
        bound = 1e-12 * size * float(a.norm() + 3 * b.norm()) + 1e-300
        assert float((opened.jvp(a + scale * b) - opened.jvp(a) - scale * opened.jvp(b)).norm()) <= bound
        one, other = float((opened.jvp(a) * c).sum()), float((a * opened.vjp(c)).sum())
        assert abs(one - other) <= bound * float(c.norm())


@given(shape=st.lists(st.integers(1, 4), min_size=2, max_size=4), seed=st.integers(0, 99))
def test_vec_stacks_columns_and_unvec_takes_it_back(shape: list[int], seed: int) -> None:
    weight = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    vector = vec(weight)
    flat = weight.flatten(1)
    assert torch.equal(vector[: shape[0]], flat[:, 0])
    assert torch.equal(vector, torch.cat(list(flat.T)))
    assert torch.equal(unvec(vector, weight.shape), weight)


@pytest.mark.parametrize("name", ["batch norm and pooling", "attention", "conv2d, circular and reflected"])
def test_float32(name: str) -> None:
    net, x = build(name, torch.float32)
    for layer in layers(net):
        opened = open_layer(net, layer, x)
        double, wide = build(name)[0], x.double()
        double.load_state_dict({key: value.double() for key, value in net.state_dict().items()})
        assert opened.connections().dtype == torch.float32
        # epsilon is 1.2e-7 and norms divide by standard deviations of order one
        assert relative_gap(opened.connections().double(), reference.connections(double, layer, wide)) < 1e-4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", reference.NETS)
def test_cuda_gives_what_the_cpu_gives(name: str) -> None:
    net, x = build(name)
    for layer in layers(net):
        host = connection(net, layer, x)
        device = connection(net.cuda(), layer, x.cuda())
        assert device.is_cuda
        assert relative_gap(device.cpu(), host) < 1e-10
        net.cpu()


def stacked(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), *modules)


def test_batch_norm_and_dropout_are_fine_once_fixed() -> None:
    net = stacked(nn.BatchNorm1d(3), nn.Dropout(0.5)).double().eval()
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert relative_gap(connection(net, "0", x), reference.connections(net, "0", x)) < TOL
    assert open_layer(stacked(nn.Dropout(0.0)).double(), "0", x).size == 9


def test_shapes_and_dtypes_that_do_not_fit() -> None:
    opened = open_layer(mlp((4, 5, 3)), "0", torch.ones(2, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"direction must have shape \(5, 4\) or \(k, 5, 4\), got \(4, 5\)"):
        opened.jvp(torch.ones(4, 5, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"cotangent must have shape \(2, 3\) or \(k, 2, 3\), got \(3,\)"):
        opened.vjp(torch.ones(3, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"cotangent must have shape \(2, 3\), got \(1, 2, 3\)"):
        opened.sample_gradients(torch.ones(1, 2, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"direction must have shape \(5, 4\) or \(k, 5, 4\), got \(2, 6, 4\)"):
        opened.jvp(torch.ones(2, 6, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"cotangent must have shape \(2, 3\), got \(3, 3\)"):
        opened.sample_gradients(torch.ones(3, 3, dtype=torch.float64))
    with pytest.raises(TypeError, match=r"direction must be torch.float64"):
        opened.jvp(torch.ones(5, 4))
    with pytest.raises(ValueError, match="length 20 is wanted"):
        unvec(torch.ones(19), (5, 4))
