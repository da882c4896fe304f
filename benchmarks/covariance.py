r"""The covariance operator against its bars: exactness, the cost of one application, and a layer that no matrix could hold.

1. Matrix-free products against the dense operator, in float64, on every layer of 20 random networks and for every kind of operator.
2. One application against one forward and backward pass on the same batch, measured in turns; what lies below the layer is
   computed once, when the operator is made; and beside curvlinops' Gauss-Newton product of the same layer, where it is installed.
3. The top 5 eigenpairs of a layer of 1536 x 1536 weights on 256 samples with 4 views each.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from benchmarks import Row, parser, report, seconds
from sslbook._check import positive
from sslbook.losses.pairs import half_squared_distance
from sslbook.networks.small import mlp
from sslbook.operator.covariance import CovarianceOperator, covariance_operator, intra_operator
from sslbook.operator.layer import Layer
from sslchapters.instances import convnet, random_network

ERROR_BAR = 1e-12
RATIO_BAR = 1.3
RESIDUAL_BAR = 1e-6
SECONDS_BAR = 60.0
MEMORY_BAR = 4.0


def run(*, quick: bool = False) -> list[Row]:
    """All measurements; ``quick`` shrinks them, for a test of the benchmark itself."""
    # first, since the peak of memory is the process's
    eigen = _eigenpairs(64, 16) if quick else _eigenpairs(1536, 256)
    return [*accuracy(4 if quick else 20), *_applications(quick=quick), *eigen]


# -- 1: exactness -------------------------------------------------------------------------------------------------------


def operators(net: nn.Module, layer: str, views: Tensor, clean: Tensor) -> Iterator[tuple[str, CovarianceOperator]]:
    """Every kind of operator of one layer; the l2-normalised ones only where no output is zero.

    Temperatures are the mean distance of the samples: at a fixed one, large outputs would underflow the weights.
    """
    with torch.no_grad():
        y = net(clean).flatten(1)
        alive = all(bool(f.any(dim=1).all()) for f in (y, net(views.flatten(0, 1)).flatten(1)))
    tau = float(half_squared_distance(y[:, None], y[None]).mean()) or 1.0
    yield "simple", covariance_operator(net, layer, views)
    yield "beta < 0", covariance_operator(net, layer, views, beta=-0.7)
    yield "beta > 0", covariance_operator(net, layer, views, beta=0.7)
    yield "intra", intra_operator(net, layer, views)
    yield (
        "soft_triplet",
        covariance_operator(net, layer, views, loss="soft_triplet", temperature=tau, margin=0.4 * tau, clean=clean),
    )
    yield "info_nce", covariance_operator(net, layer, views, loss="info_nce", temperature=tau, clean=clean)
    if alive:
        yield "l2", covariance_operator(net, layer, views, normalize=True)
        yield (
            "l2, info_nce",
            covariance_operator(net, layer, views, loss="info_nce", temperature=0.5, clean=clean, normalize=True),
        )


def product_error(op: CovarianceOperator) -> float:
    r"""Largest relative error of :math:`OP v` and :math:`OP^T v` against the dense matrix, in the operator's norm."""
    dense = op.dense()
    scale = torch.linalg.matrix_norm(dense)
    eye = torch.eye(op.shape[0], dtype=op.dtype, device=op.device)
    forward = (op.matmat(eye) - dense).norm() / scale
    probe = torch.randn(op.shape[0], generator=torch.Generator().manual_seed(0), dtype=op.dtype).to(op.device)
    transposed = (op.matmat(probe[:, None], transposed=True)[:, 0] - dense.T @ probe).norm() / (scale * probe.norm())
    return float(torch.maximum(forward, transposed))


def population(
    shape: Sequence[int], samples: int, views: int, *, seed: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Gaussian samples ``(N, *shape)`` and noisy views of them, ``(N, V, *shape)``."""
    draw = torch.Generator().manual_seed(seed)
    clean = torch.randn(samples, *shape, generator=draw, dtype=dtype)
    return clean, clean[:, None] + 0.5 * torch.randn(samples, views, *shape, generator=draw, dtype=dtype)


def _architecture(seed: int) -> tuple[nn.Sequential, tuple[int, ...]]:
    """A random network with up to 3,000 weights in a layer, and the shape of one input; every third is one of `random_network`."""
    draw = torch.Generator().manual_seed(seed)

    def pick(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=draw))

    if seed % 3 == 0:
        return random_network(seed)
    if seed % 3 == 1:
        channels, size = (pick(1, 3), *(pick(4, 16) for _ in range(pick(1, 2)))), pick(5, 8)
        return convnet(channels, size, 3000 // (channels[-1] * 16) // 4 + 1, seed=seed), (channels[0], size, size)
    widths = [pick(16, 54) for _ in range(pick(2, 4))]
    act = ("linear", "relu", "leaky_relu", "power")[pick(0, 3)]
    return mlp((*widths, pick(2, 6)), act, seed=seed), (widths[0],)


def accuracy(networks: int) -> list[Row]:
    """The worst error over every layer of random networks, for each kind of operator."""
    errors: dict[str, list[float]] = {}
    layers = most = 0
    for seed in range(networks):
        net, shape = _architecture(seed)
        clean, views = population(shape, 4, 3, seed=seed, dtype=torch.float64)
        for name, module in net.named_modules():
            if not isinstance(module, Layer):
                continue
            layers, most = layers + 1, max(most, module.weight.numel())
            for kind, op in operators(net, name, views, clean):
                errors.setdefault(kind, []).append(product_error(op))
    part = f"relative error of matrix-free products, {networks} networks, {layers} layers of up to {most:,} weights"
    # unlike Python's, torch's maximum of anything and NaN is NaN
    return [Row(part, kind, float(torch.tensor(found).max()), bar=ERROR_BAR) for kind, found in errors.items()]


# -- 2: one application -------------------------------------------------------------------------------------------------


def _application_ratio(net: nn.Module, layer: str, views: Tensor, rounds: int) -> float:
    """Time of one application of the layer's operator over that of one forward and backward pass through ``net``.

    The median of ratios measured in turns, so that a busy machine slows both alike.
    """
    op = covariance_operator(net, layer, views)
    direction = torch.randn(op.opened.weight.shape, generator=torch.Generator().manual_seed(0), dtype=op.dtype)
    batch = views.flatten(0, 1)

    def step() -> None:
        net.zero_grad()
        net(batch).square().mean().backward()

    ratios = [seconds(lambda: op.apply(direction), 0.05) / seconds(step, 0.05) for _ in range(rounds)]
    return statistics.median(ratios)


def _applications(*, quick: bool = False) -> list[Row]:
    """The ratio for every layer of an MLP and of a small conv net, in float32."""
    dtype = torch.float32
    if quick:
        nets = [
            ("MLP", mlp((32, 32, 8), dtype=dtype), (32,), (8, 2)),
            ("conv", convnet((3, 4, 4), 8, 8, dtype=dtype), (3, 8, 8), (4, 2)),
        ]
    else:
        nets = [
            ("MLP 512-512-512-512-128", mlp((512, 512, 512, 512, 128), dtype=dtype), (512,), (256, 4)),
            ("conv 3-32-64-64-head, 32 x 32", convnet((3, 32, 64, 64), 32, 128, dtype=dtype), (3, 32, 32), (16, 4)),
        ]
    rows = []
    for name, net, shape, (samples, count) in nets:
        _, views = population(shape, samples, count, seed=0, dtype=dtype)
        part = f"one application / (forward + backward), {name}, {samples} samples x {count} views"
        for layer, module in net.named_modules():
            if isinstance(module, Layer):
                ratio = _application_ratio(net, layer, views, 3 if quick else 15)
                label = f"layer {layer}, {module.weight.numel():,} weights"
                rows.append(Row(part, label, ratio, bar=None if quick else RATIO_BAR))
                rows += _beside_curvlinops(net, layer, views)
    return rows


class _Means(nn.Module):
    """Centred means of the outputs over each sample's views; the operator is the Gauss-Newton matrix of their squares."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, views: Tensor) -> Tensor:
        means: Tensor = self.net(views.flatten(0, 1)).unflatten(0, views.shape[:2]).mean(1)
        return means - means.mean(0)


def _beside_curvlinops(net: nn.Module, layer: str, views: Tensor) -> list[Row]:
    """The same product by curvlinops, where it is installed: its time over ours, and how far the numbers are apart."""
    try:
        from curvlinops import GGNLinearOperator
    except ImportError:
        return []
    op, means, weight = covariance_operator(net, layer, views), _Means(net), net.get_parameter(f"{layer}.weight")
    data = [(views, torch.zeros_like(means(views)))]
    theirs = GGNLinearOperator(means, nn.MSELoss(reduction="sum"), [weight], data, check_deterministic=False)
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0), dtype=op.dtype)
    ours, product = op.apply(direction), theirs @ direction.flatten() / (2 * len(views))
    ratio = seconds(lambda: theirs @ direction.flatten(), 0.2) / seconds(lambda: op.apply(direction), 0.2)
    part = f"curvlinops: the same product, layer {layer}, {weight.numel():,} weights"
    apart = float((product.view_as(ours) - ours).norm() / ours.norm())
    return [Row(part, "its time over ours", ratio, "x"), Row(part, "relative difference", apart)]


# -- 3: a layer that no matrix could hold ----------------------------------------------------------------------------------


def _eigenpairs(width: int, samples: int) -> list[Row]:
    """Top eigenpairs of the middle layer of an MLP ``width-width-width-128`` on white inputs: close eigenvalues, the hard case."""
    views, k = 4, 5
    net = mlp((width, width, width, 128))
    _, x = population((width,), samples, views, seed=0, dtype=torch.float64)
    before = _peak_memory()
    start = time.perf_counter()
    op = covariance_operator(net, "2", x)
    found = op.top_eigenpairs(k, tol=RESIDUAL_BAR / 2)
    taken = time.perf_counter() - start
    peak = _peak_memory()
    part = f"top {k} eigenpairs, {width} x {width} weights, {samples} samples x {views} views, float64"
    overlap = found.vectors.T @ found.vectors - torch.eye(k, dtype=op.dtype)
    return [
        Row(part, "largest relative residual", float(found.residuals.max()), bar=RESIDUAL_BAR),
        Row(part, "eigenvectors: distance from orthonormal", float(overlap.abs().max()), bar=1e-10),
        Row(part, "seconds, operator and eigenpairs", taken, "s", bar=SECONDS_BAR),
        Row(part, "peak memory of the process", peak, "GiB", bar=MEMORY_BAR),
        Row(part, "of it, more than before", peak - before, "GiB"),
        Row(part, "the matrix, were it formed: in float64", op.shape[0] ** 2 * 8 / 1e12, "TB"),
        Row(part, "the matrix, were it formed: in float32", op.shape[0] ** 2 * 4 / 1e12, "TB"),
    ]


def _peak_memory() -> float:
    """The most memory that this process has held so far, in GiB."""
    import resource  # Windows has none

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


# -- the command ----------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """``sslbook bench covariance``: print the table; exit status 1 if a bar is missed."""
    asked = parser("covariance", __doc__, "small sizes: a test of the benchmark, not of the machine")
    asked.add_argument("--threads", type=positive, metavar="N", help="threads of PyTorch (default: as it starts)")
    options = asked.parse_args(arguments)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    return report(run(quick=options.quick), as_json=options.json)
