"""The connection against plain autograd in the weight, on layers and networks of every kind.

Tolerance 1e-12: both sides are sums of at most a thousand products in float64 (epsilon 2e-16), without cancellation worth
speaking of, since errors are measured against the largest item of the batch.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import connection_cases as reference
import pytest
import torch
from hostile_networks import Net
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from sslbook.networks.small import initialize, mlp
from sslbook.operator.covariance import relative_gap
from sslbook.operator.frozen import PlainConvolutions
from sslbook.operator.layer import Layer, connection, open_in_chunks, open_layer, unvec, vec

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


@given(shape=st.lists(st.integers(1, 4), min_size=2, max_size=4), seed=st.integers(0, 99))
def test_vec_stacks_columns_and_unvec_takes_it_back(shape: list[int], seed: int) -> None:
    weight = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    vector = vec(weight)
    flat = weight.flatten(1)
    assert torch.equal(vector[: shape[0]], flat[:, 0])
    assert torch.equal(vector, torch.cat(list(flat.T)))
    assert torch.equal(unvec(vector, weight.shape), weight)


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


def test_shapes_and_dtypes_that_do_not_fit() -> None:
    net, x = mlp((4, 5, 3)), torch.ones(2, 4, dtype=torch.float64)
    for opened in (open_layer(net, "0", x), open_in_chunks(net, "0", x, 2)):
        with pytest.raises(ValueError, match=r"direction must have shape \(5, 4\) or \(k, 5, 4\), got \(4, 5\)"):
            opened.jvp(torch.ones(4, 5, dtype=torch.float64))
        with pytest.raises(ValueError, match=r"cotangent must have shape \(2, 3\) or \(k, 2, 3\), got \(3, 3\)"):
            opened.vjp(torch.ones(3, 3, dtype=torch.float64))
        with pytest.raises(TypeError, match=r"direction must be torch.float64"):
            opened.jvp(torch.ones(5, 4))


def applies(forward: Callable[[Any, Tensor], Tensor], **modules: nn.Module) -> nn.Module:
    return Net(lambda net, x: net.b(forward(net, x)), **{"a": nn.Identity(), "b": nn.Linear(8, 3)} | modules)


def reads(net: Any, x: Tensor) -> Tensor:
    """The layer's weight without the layer."""
    return F.linear(x, net.a.weight, net.a.bias)


TOKENS, IMAGE, VECTOR = (3, 5, 8), (3, 1, 12, 12), (3, 8)
ENCODER = partial(nn.TransformerEncoderLayer, 8, 2, 16, batch_first=True)
ATTENTION = partial(nn.MultiheadAttention, 8, 2, batch_first=True)
OFFERED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "transformer's layer": (lambda: nn.Sequential(ENCODER(), nn.Linear(8, 3)), TOKENS),
    "attention": (lambda: applies(lambda net, x: net.a(x, x, x)[0], a=ATTENTION()), TOKENS),
    "one weight, two layers": (lambda: applies(lambda net, x: net.c(net.d(x)), **tied_pair()), VECTOR),
    "normalised weights": (
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 8)), nn.Tanh(), nn.Linear(8, 2)),
        VECTOR,
    ),
    "transposed": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.ConvTranspose2d(2, 1, 3), nn.Conv2d(1, 1, 3)),
        IMAGE,
    ),
}


def tied_pair() -> dict[str, nn.Module]:
    one, other = nn.Linear(8, 8), nn.Linear(8, 8)
    other.weight = one.weight
    return {"c": one, "d": other}


@pytest.mark.parametrize("name", OFFERED)
def test_every_layer_that_is_offered_can_be_opened(name: str) -> None:
    torch.manual_seed(0)
    make, shape = OFFERED[name]
    net = make().double().eval()
    x = torch.randn(shape, dtype=torch.float64)
    with pytest.raises(ValueError, match="linear and convolutional layers are '") as told:
        open_layer(net, "no such", x)
    offered = re.findall("'([^']*)'", str(told.value).partition("layers are ")[2])
    for layer in offered:
        assert open_layer(net, layer, x).size == net.get_submodule(layer).weight.numel()
    for layer in set(layers(net)) - set(offered):  # and no more is kept back than must be
        with pytest.raises(ValueError, match="own, it shares"):
            open_layer(net, layer, x)


@pytest.mark.parametrize(
    ("make", "layer", "parent", "others"),
    [
        (lambda: nn.Sequential(ENCODER()), "0.self_attn.out_proj", "'0.self_attn'", "'0.linear1', '0.linear2'"),
        (lambda: nn.Sequential(applies(reads, a=nn.Linear(8, 8)), nn.Linear(3, 2)), "0.a", "Net '0'", "'0.b', '1'"),
    ],
)  # fmt: skip
def test_a_weight_that_is_used_without_its_layer_is_told(make: Any, layer: str, parent: str, others: str) -> None:
    message = f"applied 0 times:.*{parent} uses its weight without calling it; to open there are {others}$"
    with pytest.raises(ValueError, match=message):
        open_layer(make().double().eval(), layer, torch.ones(3, 5, 8, dtype=torch.float64))


@pytest.mark.parametrize("name", ["batch norm and pooling", "attention", "conv3d", "one layer"])
@pytest.mark.parametrize("chunk", [2, 3, 7, 100])
def test_every_product_is_that_of_the_whole(name: str, chunk: int) -> None:
    net, x = build(name, batch=7)
    draw = torch.Generator().manual_seed(2)
    for layer in [n for n, m in net.named_modules() if isinstance(m, Layer) and not n.endswith("out_proj")]:
        whole, parts = open_layer(net, layer, x), open_in_chunks(net, layer, x, chunk)
        directions = torch.randn(2, *whole.weight.shape, generator=draw, dtype=x.dtype)
        cotangents = torch.randn(2, *whole.output.shape, generator=draw, dtype=x.dtype)
        pairs = [(getattr(whole, field), getattr(parts, field)) for field in ("weight", "output", "below")]
        pairs += [(o.jvp(directions), p.jvp(directions)) for o, p in [(whole, parts)]]
        pairs += [(whole.connections(), parts.connections())]
        given = cotangents[0]
        pairs += [
            (getattr(whole, f)(given), getattr(parts, f)(given)) for f in ("kernel", "sample_gradients", "pulled_back")
        ]
        pairs += [(whole.vjp(c), parts.vjp(c)) for c in (cotangents, given)]
        assert all(relative_gap(b, a) < TOL for a, b in pairs)
        assert (whole.name, repr(whole.module), whole.size) == (parts.name, repr(parts.module), parts.size)


def test_memory_is_that_of_one_chunk() -> None:
    net = mlp((4, 6, 3))
    seen: list[weakref.ref[Tensor]] = []

    def watch(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        assert len(out) <= 8
        assert not any(earlier() is not None for earlier in seen), "the chunk before is still there"
        seen.append(weakref.ref(out))

    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    opened = open_in_chunks(net, "0", x, 8)
    opened._frozen.net[1].register_forward_hook(watch)
    opened.vjp(opened.jvp(opened.weight))
    opened.connections()
    assert len(seen) == 15


class Rows(nn.Module):
    """Divides by zero for one sample."""

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.detach()[:, :1] != 5)


def test_a_later_chunk_is_looked_at_too() -> None:
    net = nn.Sequential(nn.Linear(2, 2, bias=False), Rows()).double()
    nn.init.eye_(net[0].weight)
    x = torch.ones(6, 2, dtype=torch.float64)
    assert open_in_chunks(net, "0", x, 2).output.isfinite().all()
    x[5] = 5
    with pytest.raises(ValueError, match="the output of net must be finite"):
        open_in_chunks(net, "0", x, 2)


def draws(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_by_its_statistics_keeps_no_input(affine: bool) -> None:
    x, mean, scale, weight, bias = draws((4, 3, 2), (3,), (3,), (3,), (3,))
    given = {"weight": weight, "bias": bias} if affine else {}
    kept: list[Tensor] = []

    def normalized(training: bool) -> Tensor:
        return F.batch_norm(x.requires_grad_(), mean, scale.exp(), **given, training=training)

    with PlainConvolutions(), torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        found = normalized(training=False)
    assert all(tensor.numel() <= 3 for tensor in kept)
    assert torch.equal(found, normalized(training=False))
    cotangent = torch.ones_like(x).cumsum(0).requires_grad_()
    pulls = [torch.autograd.grad(y, x, cotangent, create_graph=True)[0] for y in (found, normalized(training=False))]
    assert (pulls[0] - pulls[1]).abs().max() <= 1e-13 * pulls[1].abs().max()
    (twice,) = torch.autograd.grad(pulls[0], cotangent, x.detach())
    assert (twice - pulls[1].detach() / cotangent.detach() * x.detach()).abs().max() <= 1e-13
    several = torch.stack([cotangent.detach(), torch.ones_like(x)])
    alone = [torch.autograd.grad(found, x, each, retain_graph=True)[0] for each in several]
    (batched,) = torch.autograd.grad(found, x, several, is_grads_batched=True)
    assert (batched - torch.stack(alone)).abs().max() <= 1e-13
    with PlainConvolutions():
        assert torch.equal(normalized(training=True), F.batch_norm(x, mean, scale, **given, training=True))


@pytest.mark.parametrize("which", [0, 1, 2])
def test_weights_and_biases_that_want_gradients_get_them(which: int) -> None:
    given = draws((2, 3, 5), (4, 3, 2), (4,))
    wanted = given[which].requires_grad_()
    with PlainConvolutions():
        y = F.conv1d(*given)
    assert (type(y.grad_fn).__name__ == "_ConvBackward") == (which == 0)
    assert torch.autograd.grad(y.sum(), wanted, allow_unused=True)[0] is not None
