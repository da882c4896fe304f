r"""The covariance operator against its bars: exactness, the cost of one application, and a layer that no matrix could hold.

1. Matrix-free products against the dense operator, in float64, on every layer of 20 random networks and for every kind of operator.
2. One application against one forward and backward pass on the same batch, measured in turns; what lies below the layer is
   computed once, when the operator is made.
3. The top 5 eigenpairs of a layer of 1536 x 1536 weights on 256 samples with 4 views each.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks import Row, seconds
from sslbook.losses.pairs import half_squared_distance
from sslbook.networks.small import mlp
from sslbook.operator.covariance import CovarianceOperator, covariance_operator, intra_operator
from sslbook.operator.layer import layers_of
from sslchapters.instances import convnet, random_network

ERROR_BAR, RATIO_BAR, RESIDUAL_BAR, SECONDS_BAR, GIB_BAR = 1e-12, 1.3, 1e-6, 60.0, 4.0


def run(options: argparse.Namespace) -> list[Row]:
    """All measurements; ``--quick`` shrinks them, for a test of the benchmark itself."""
    # first, since the peak of memory is the process's
    eigen = eigenpairs(64, 16) if options.quick else eigenpairs(1536, 256)
    return [*accuracy(4 if options.quick else 20), *applications(quick=options.quick), *eigen]


def population(shape: Sequence[int], samples: int, views: int, seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Gaussian samples ``(N, *shape)`` and noisy views of them, ``(N, V, *shape)``."""
    draw = torch.Generator().manual_seed(seed)
    clean = torch.randn(samples, *shape, generator=draw, dtype=dtype)
    return clean, clean[:, None] + 0.5 * torch.randn(samples, views, *shape, generator=draw, dtype=dtype)


def accuracy(networks: int) -> list[Row]:
    """The worst error over every layer of random networks (MLPs, conv nets, residual ones), for each kind of operator.

    Temperatures are the mean distance of the samples: at a fixed one, large outputs would underflow the weights.
    """
    errors: dict[str, list[float]] = {}
    for seed in range(networks):
        net, shape = random_network(seed)
        clean, views = population(shape, 4, 3, seed, torch.float64)
        y = net(clean).detach()
        tau = float(half_squared_distance(y[:, None], y[None]).mean()) or 1.0
        info_nce = partial(covariance_operator, loss="info_nce", clean=clean)
        kinds: dict[str, Callable[..., CovarianceOperator]] = {
            "simple": covariance_operator,
            "beta < 0": partial(covariance_operator, beta=-0.7),
            "beta > 0": partial(covariance_operator, beta=0.7),
            "soft_triplet": partial(info_nce, loss="soft_triplet", temperature=tau, margin=0.4 * tau),
            "info_nce": partial(info_nce, temperature=tau),
            "intra": intra_operator,
        }
        if all(bool(f.any(dim=1).all()) for f in (y, net(views.flatten(0, 1)))):  # a zero has no direction
            kinds["l2"] = partial(covariance_operator, normalize=True)
            kinds["l2, info_nce"] = partial(info_nce, temperature=0.5, normalize=True)
        for layer in layers_of(net):
            for kind, make in kinds.items():
                errors.setdefault(kind, []).append(product_error(make(net, layer, views)))
    part = f"relative error of matrix-free products, {networks} networks, {len(errors['simple'])} layers"
    # unlike Python's, torch's maximum of anything and NaN is NaN
    return [Row(part, kind, float(torch.tensor(found).max()), bar=ERROR_BAR) for kind, found in errors.items()]


def product_error(op: CovarianceOperator) -> float:
    r"""Largest error of :math:`OP` and :math:`OP^T` against the dense matrix, relative to its norm."""
    dense, eye = op.dense(), torch.eye(op.shape[0], dtype=op.dtype)
    gaps = torch.stack([(op @ eye - dense).norm(), (op.matvec(eye, transposed=True) - dense.T).norm()])
    return float(gaps.max() / dense.norm())


def applications(*, quick: bool = False) -> list[Row]:
    """Time of one application over that of one forward and backward pass, for each layer of two networks, in float32.

    The median of ratios measured in turns, so that a busy machine slows both alike.
    """
    side, rows = 8 if quick else 32, []
    widths = (32, 32, 8) if quick else (512, 512, 512, 512, 128)
    channels = (3, 4, 4) if quick else (3, 32, 64, 64)
    for name, net, shape, count in (
        ("MLP", mlp(widths, dtype=torch.float32), widths[:1], 8 if quick else 256),
        ("conv", convnet(channels, side, 4 * side).float(), (3, side, side), 4 if quick else 16),
    ):
        _, views = population(shape, count, 4, 0, torch.float32)

        def step(net: nn.Module = net, views: Tensor = views) -> None:
            net.zero_grad()
            net(views.flatten(0, 1)).square().mean().backward()

        for layer, module in layers_of(net).items():
            apply = partial(covariance_operator(net, layer, views).apply, torch.ones_like(module.weight))
            ratios = [seconds(apply, 0.05) / seconds(step, 0.05) for _ in range(3 if quick else 15)]
            part = f"one application / (forward + backward), {name}, {count} samples x 4 views"
            label = f"layer {layer}, {module.weight.numel():,} weights"
            rows.append(Row(part, label, statistics.median(ratios), bar=None if quick else RATIO_BAR))
    return rows


def eigenpairs(width: int, samples: int) -> list[Row]:
    """Top eigenpairs of the middle layer of an MLP ``width-width-width-128`` on white inputs: close eigenvalues, the hard case."""
    import resource  # Windows has none

    k, net = 5, mlp((width, width, width, 128))
    _, x = population((width,), samples, 4, 0, torch.float64)
    start = time.perf_counter()
    op = covariance_operator(net, "2", x)
    found = op.top_eigenpairs(k, tol=RESIDUAL_BAR / 2)
    taken, overlap = time.perf_counter() - start, found.vectors.T @ found.vectors - torch.eye(k, dtype=op.dtype)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
    part = f"top {k} eigenpairs, {width} x {width} weights, {samples} samples x 4 views, float64"
    return [
        Row(part, "largest relative residual", float(found.residuals.max()), bar=RESIDUAL_BAR),
        Row(part, "eigenvectors: distance from orthonormal", float(overlap.abs().max()), bar=1e-10),
        Row(part, "seconds, operator and eigenpairs", taken, "s", bar=SECONDS_BAR),
        Row(part, "peak memory of the process", peak, "GiB", bar=GIB_BAR),
        Row(part, "the matrix, were it formed: in float32", op.shape[0] ** 2 * 4 / 1e12, "TB"),
    ]
