"""The operator elsewhere: among SciPy's operators and solvers, in half precision, in residual networks and transformers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy import linalg
from scipy.sparse.linalg import (
    LinearOperator,
    aslinearoperator,
    cg,
    eigs,
    eigsh,
    expm_multiply,
    gmres,
    lobpcg,
    svds,
)
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from sslbook.bench.covariance import operators, population
from sslbook.losses import batch
from sslbook.networks.small import convnet, mlp
from sslbook.operator.covariance import CovarianceOperator, covariance_operator, intra_operator
from sslbook.operator.inner_products import gram_weights
from sslbook.stats.checks import relative_gap

BAR = {np.dtype("f8"): 1e-12, np.dtype("f4"): 1e-5}
DRAW = np.random.default_rng(0)


def kinds() -> dict[str, CovarianceOperator]:
    clean, views = population((6,), 8, 3, seed=0, dtype=torch.float64)
    net, give = mlp((6, 8, 3), "leaky_relu"), partial(covariance_operator, layer="0")
    found = dict(operators(net, "0", views, clean))
    found |= {
        "one layer": covariance_operator(mlp((6, 5)), "0", views),
        "of a batch": give(net, views=views, loss="info_nce", temperature=0.5),
        "in chunks": give(net, views=views, chunk=5),
        "conv": give(convnet((2, 3, 4), 5, 3), views=population((2, 5, 5), 6, 2, seed=0, dtype=torch.float64)[1]),
    }
    net = mlp((6, 8, 3), "leaky_relu").float()
    found |= {
        "float32": give(net, views=views.float()),
        "float32, l2": give(net, views=views.float(), normalize=True),
    }
    return found | {"bfloat16": give(net.bfloat16(), views=views.bfloat16())}


KINDS = kinds()
VECTORS: dict[str, Callable[[int], Any]] = {
    "complex": lambda n: DRAW.standard_normal(n) + 1j * DRAW.standard_normal(n),
    "imaginary": lambda n: 1j * DRAW.standard_normal(n),
    "complex64": lambda n: (DRAW.standard_normal(n) + 1j * DRAW.standard_normal(n)).astype("c8"),
    **{kind: lambda n, kind=kind: (4 * DRAW.standard_normal(n)).round().astype(kind) for kind in ("i8", "i2", ">i4")},
    **{kind: lambda n, kind=kind: DRAW.integers(0, 2, n).astype(kind) for kind in ("u8", "u1", "?")},
    **{kind: lambda n, kind=kind: DRAW.standard_normal(n).astype(kind) for kind in ("f2", "f4", "f8", "g", "G", ">f8")},
    "backwards": lambda n: DRAW.standard_normal(n)[::-1],
    "each other": lambda n: DRAW.standard_normal(2 * n)[::2],
    "read-only": lambda n: np.frombuffer(DRAW.standard_normal(n).tobytes()),
    "a column": lambda n: DRAW.standard_normal((n, 1)),
    "a matrix of NumPy": lambda n: np.matrix(DRAW.standard_normal((n, 1))),
    "columns": lambda n: DRAW.standard_normal((n, 3)),
    "complex columns, Fortran's order": lambda n: np.asfortranarray(DRAW.standard_normal((n, 2)) * (1 + 2j)),
    "columns backwards": lambda n: DRAW.standard_normal((n, 3))[::-1, ::-1],
}


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("kind", KINDS)
def test_products_of_every_kind_of_vector(kind: str) -> None:
    op = KINDS[kind]
    linear, dense = op.to_scipy(), op.dense().numpy()
    shift = 2 * aslinearoperator(np.eye(len(dense), dtype=dense.dtype))
    pairs: dict[str, tuple[LinearOperator, np.ndarray]] = {
        "A": (linear, dense),
        "A.T": (linear.T, dense.T),
        "A.H": (linear.H, dense.T),
        "A + 2": (linear + shift, dense + 2 * np.eye(len(dense))),
        "A A.T": (linear @ linear.T, dense @ dense.T),
        "2i A": (2j * linear, 2j * dense),
    }
    for what, draw in VECTORS.items():
        given = draw(len(dense))
        before = given.copy()
        for name, (one, matrix) in pairs.items():
            found, wanted = one @ given, matrix @ np.asarray(given, "c16" if np.iscomplexobj(given) else "f8")
            assert found.shape == wanted.shape, (what, name)
            assert np.iscomplexobj(found) == np.iscomplexobj(wanted), (what, name)
            assert np.abs(found - wanted).max() <= BAR[dense.dtype] * np.abs(wanted).max(), (what, name)
        for one in (linear, linear.T, linear.H):
            assert one.dtype == dense.dtype
            assert (one @ given).dtype == (dense.dtype if not np.iscomplexobj(given) else np.result_type(dense, "c8"))
        assert np.array_equal(given, before), what


def top(values: np.ndarray) -> np.ndarray:
    return np.sort(np.abs(values))[-3:]


SOLVERS: dict[str, tuple[Callable[[LinearOperator, np.ndarray], Any], Callable[[np.ndarray, np.ndarray], Any]]] = {
    "eigs": (
        lambda a, b: top(eigs(a, 3, v0=b.astype(a.dtype), return_eigenvectors=False)),
        lambda a, b: top(linalg.eigvals(a)),
    ),
    "svds": (
        lambda a, b: np.sort(svds(a, 3, v0=b, return_singular_vectors=False)),
        lambda a, b: top(linalg.svdvals(a)),
    ),
    "gmres": (
        lambda a, b: gmres(a + 1j * eye(a), b, rtol=1e-8)[0],
        lambda a, b: linalg.solve(a + 1j * np.eye(len(a)), b),
    ),
    "expm, i": (lambda a, b: expm_multiply(-1j * a, b, traceA=0.0), lambda a, b: linalg.expm(-1j * a) @ b),
}
SYMMETRIC = {
    "eigsh": (
        lambda a, b: np.sort(eigsh(a, 3, which="LA", v0=b.astype(a.dtype), return_eigenvectors=False)),
        lambda a, b: linalg.eigvalsh(a)[-3:],
    ),
    "lobpcg": (
        lambda a, b: np.sort(lobpcg(a, DRAW.standard_normal((len(b), 3)), maxiter=200, tol=1e-4)[0]),
        lambda a, b: linalg.eigvalsh(a)[-3:],
    ),
    "cg": (lambda a, b: cg(a + 3 * eye(a), b, rtol=1e-8)[0], lambda a, b: linalg.solve(a + 3 * np.eye(len(a)), b)),
}


def eye(like: LinearOperator) -> LinearOperator:
    return aslinearoperator(np.eye(like.shape[0], dtype=like.dtype))


@pytest.mark.parametrize("solver", [*SOLVERS, *SYMMETRIC])
@pytest.mark.parametrize("kind", ["simple", "l2", "of a batch", "in chunks", "conv", "float32", "float32, l2"])
def test_solvers_find_what_they_find_with_the_dense_matrix(kind: str, solver: str) -> None:
    op = KINDS[kind]
    if solver in SYMMETRIC and not op.symmetric:
        return
    by_products, by_matrix = {**SOLVERS, **SYMMETRIC}[solver]
    start = np.random.default_rng(1).standard_normal(op.shape[0])
    found, wanted = by_products(op.to_scipy(), start), by_matrix(op.dense().double().numpy(), start)
    assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("kind", ["simple", "l2", "in chunks"])
def test_vectors_of_torch_in_any_layout(kind: str) -> None:
    op = KINDS[kind]
    dense, n = op.dense(), op.shape[0]
    draw = torch.randn(2 * n, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for given in (
        draw[::2],
        draw[:n].flip(0),
        draw[::2, ::2],
        draw.T.reshape(12, n).T,
        draw[:n].clone().requires_grad_(),
    ):
        bar = 1e-12 * float(dense.abs().max() * given.detach().norm())
        assert float((op.matmat(given) - dense @ given).detach().norm()) < bar
        assert float((op.matvec(given[:, 1]) - dense @ given[:, 1]).detach().norm()) < bar
        assert float((op.rmatvec(given[:, 1]) - dense.T @ given[:, 1]).detach().norm()) < bar


# --- half precision, and images and kernels in another order in memory -----------------------------------------------


HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
LOSSES: dict[str, dict[str, Any]] = {
    "simple": {},
    "one negative": {"loss": "info_nce", "temperature": 0.5, "normalize": True},
    "all negatives": {"loss": "info_nce", "temperature": 0.5},
    "in chunks": {"chunk": 4},
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.GELU(), nn.Conv2d(6, 8, 3, stride=2), nn.ReLU()
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()


def images() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    clean = torch.randn(5, 3, 9, 9, generator=draw)
    return clean[:, None] + 0.5 * torch.randn(5, 2, 3, 9, 9, generator=draw), clean


def operator(net: nn.Module, views: Tensor, clean: Tensor, layer: str = "3", **loss: Any) -> CovarianceOperator:
    more = {"clean": clean} if "loss" in loss and "normalize" in loss else {}
    return covariance_operator(net, layer, views, **loss, **more)


@HALF
@pytest.mark.parametrize("loss", LOSSES)
def test_half_precision_is_the_same_weights_in_float32(dtype: torch.dtype, loss: str) -> None:
    net = network().to(dtype)
    views, clean = (part.to(dtype) for part in images())
    found = operator(net, views, clean, **LOSSES[loss])
    whole = operator(copy.deepcopy(net).float(), views.float(), clean.float(), **LOSSES[loss])
    assert found.dtype == torch.float32
    assert torch.equal(found.dense(), whole.dense())
    assert torch.equal(found.exact_update(), whole.exact_update())
    assert f"torch.float32 of weights given in {dtype}" in repr(found)
    assert "given" not in repr(whole)
    assert {part.dtype for part in net.parameters()} == {dtype}
    assert torch.equal(operator(net, views.float(), clean.float(), **LOSSES[loss]).dense(), found.dense())


@HALF
def test_a_part_in_half_precision(dtype: torch.dtype) -> None:
    """Large networks keep their normalisations in float32."""
    net = network()
    for part in (net[0], net[3], net[7]):
        part.to(dtype)
    views, _ = images()
    found = intra_operator(net, "0", views.to(dtype))
    assert torch.equal(found.dense(), intra_operator(copy.deepcopy(net).float(), "0", views.to(dtype).float()).dense())


@pytest.mark.parametrize("which", ["images", "network", "both"])
@pytest.mark.parametrize("layer", ["0", "3", "7"])
def test_channels_last_is_the_same_operator(which: str, layer: str) -> None:
    net, views = network().double(), images()[0].double()
    loss = partial(batch.info_nce, temperature=0.5)
    plain = covariance_operator(net, layer, views, loss=loss)
    if which != "images":
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if which != "network":
        flat = views.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        views = flat.unflatten(0, views.shape[:2])
        assert views.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    found = covariance_operator(net, layer, views, loss=loss)
    assert relative_gap(found.dense(), plain.dense()) < 1e-13
    assert relative_gap(found.exact_update(), plain.exact_update()) < 1e-12
    direction = torch.randn(plain.opened.weight.shape, generator=torch.Generator().manual_seed(2)).double()
    assert relative_gap(found.apply(direction), plain.apply(direction)) < 1e-13
    assert relative_gap(found.matmat(torch.eye(len(found.dense())).double()), plain.dense()) < 1e-12


# --- a ResNet-50 and a vision transformer, in float64, against autograd alone ----------------------------------------


LOSS = partial(batch.info_nce, temperature=0.5)


def agrees(net: nn.Module, layers: tuple[str, ...]) -> None:
    """Opens each layer; fails where the operator is not what autograd says of the whole network."""
    net = net.double().eval()
    draw = torch.Generator().manual_seed(1)
    image = torch.randn(3, 1, 3, 32, 32, generator=draw, dtype=torch.float64)
    views = image + 0.3 * torch.randn(3, 2, 3, 32, 32, generator=draw, dtype=torch.float64)
    x = views.flatten(0, 1)
    outputs = net(x)
    mixing = -2 * gram_weights(LOSS, outputs.unflatten(0, (3, 2)))
    weights = [net.get_parameter(f"{layer}.weight") for layer in layers]
    gradients = torch.autograd.grad(LOSS(outputs.unflatten(0, (3, 2))), weights, retain_graph=True)
    for layer, weight, gradient in zip(layers, weights, gradients, strict=True):
        op = covariance_operator(net, layer, views, loss=LOSS)
        assert relative_gap(op.exact_update(), -gradient) < 1e-10, layer
        direction = torch.randn(weight.shape, generator=draw, dtype=torch.float64)

        def of_weight(w: Tensor, layer: str = layer) -> Tensor:
            found: Tensor = functional_call(net, {f"{layer}.weight": w}, (x,))
            return found

        with sdpa_kernel(SDPBackend.MATH):
            pushed = torch.autograd.functional.jvp(of_weight, weight.detach(), direction)[1]
        (image,) = torch.autograd.grad(outputs, weight, mixing @ pushed, retain_graph=True)
        assert relative_gap(op.apply(direction), image) < 1e-10, layer
        (other,) = torch.autograd.grad(outputs, weight, mixing.roll(2, 0) @ pushed, retain_graph=True)
        assert relative_gap(other, image) > 1e-2, layer


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1, with a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(inputs, width, 1, bias=False), nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.c = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in (width, width, 4 * width))
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
        if stride == 1 and inputs == 4 * width:
            self.shortcut = nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norms[0](self.a(x)))
        h = F.relu(self.norms[1](self.b(h)))
        return F.relu(self.norms[2](self.c(h)) + self.shortcut(x), inplace=True)


def resnet50(width: int = 6) -> nn.Module:
    """ResNet-50's blocks, of another width."""
    parts: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    parts.append(nn.MaxPool2d(3, 2, 1))
    channels = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            parts.append(Bottleneck(channels, width * 2**stage, 2 if stage and not block else 1))
            channels = 4 * width * 2**stage
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5))


class Block(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads, self.one, self.two = heads, nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.proj = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.one(x)).unflatten(-1, (3, self.heads, -1)).movedim((2, 3), (0, 2))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.two(x))


class ViT(nn.Module):
    def __init__(self, size: int = 24, depth: int = 4, patch: int = 8) -> None:
        super().__init__()
        self.embed, self.token = nn.Conv2d(3, size, patch, patch), nn.Parameter(torch.randn(1, 1, size))
        self.place = nn.Parameter(torch.randn(1, 1 + (32 // patch) ** 2, size))
        self.blocks, self.norm = nn.Sequential(*(Block(size, 3) for _ in range(depth))), nn.LayerNorm(size)
        self.head = nn.Linear(size, 5)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.embed(x).flatten(2).mT
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], dim=1) + self.place
        out: Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return out


def test_a_resnet_50_in_torch_nn() -> None:
    torch.manual_seed(0)
    agrees(resnet50(), ("0", "10.b", "11.shortcut.0", "22"))


def test_a_vision_transformer_in_torch_nn() -> None:
    torch.manual_seed(0)
    agrees(ViT(), ("embed", "blocks.1.qkv", "blocks.1.mlp.2", "blocks.2.proj", "head"))
